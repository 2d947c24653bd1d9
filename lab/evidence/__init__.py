"""What GPU hosts find: run there, kept in evidence/, gathered, and reported in docs/.

Modules and packages, low to high; none imports from its own floor or a higher one:
harness results · cells footprints front gpurun written ·
incoming matrix · pages · picture · commands
"""
