"""The plots of docs/, drawn where matplotlib is.

Modules, low to high; none imports from its own floor or a higher one:
paper · bench gain · figures
"""
