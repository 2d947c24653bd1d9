"""What this repository holds, and its rules: headers, patches, the series with its guards, lint.

Modules, low to high; none imports from its own floor or a higher one:
header · patchfile · series · edit
"""
