"""A release of the queue: its files made and frozen, and a package index of its wheels.

Modules, low to high; none imports from its own floor or a higher one:
changelog onepatch wheelfile · assets index · cutting
"""
