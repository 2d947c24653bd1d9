"""What GPU hosts find: run there, kept in evidence/, gathered, and told in docs/.

Modules, low to high; none imports from its own floor or a higher one:
evidence gpurun · gainpage merge status · benchpage · figurespage fleet
"""
