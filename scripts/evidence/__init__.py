"""What GPU hosts find: run there, kept in evidence/, gathered, and told in docs/; and how fast the
tool is.

Modules and packages, low to high; none imports from its own floor or a higher one:
harness records · gpurun store · benches cells gains merge · figures matrix ways ·
fleet measure plots questions · pages · commands
"""
