"""What this machine and this container are, one module per subject.

Every function reads files below a root, or calls of the operating system, and returns plain data.
Nothing here judges (that is stages/preflight.py), imports torch, or needs more rights than the
process has: what cannot be read is nothing.
"""
