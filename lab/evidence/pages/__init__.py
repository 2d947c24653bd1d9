"""The pages of docs/ that are made from evidence/: their numbers, and the templates of their words.

Modules, low to high; none imports from its own floor or a higher one:
render · bench status
"""
