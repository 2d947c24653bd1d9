"""What GPU hosts find: run there, kept in evidence/, gathered, and told in docs/; and how fast the
tool is.

Modules and packages, low to high; none imports from its own floor or a higher one:
records · gpurun store · cells · gainpage merge status · benchpage measure pulls ·
figurespage fleet · commands
"""
