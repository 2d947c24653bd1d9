"""What the tool promises, measured on this machine.

Modules, low to high; none imports from its own floor or a higher one:
copies · edited handover kills newcomer wheels · queue
"""
