"""The kinds of run, a folder for each. None of them knows another."""
