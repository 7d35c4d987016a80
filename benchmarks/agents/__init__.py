"""Games of many roles: what their algorithms learn. README.md, one folder above, says how."""
