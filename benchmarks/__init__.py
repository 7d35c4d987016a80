"""palestra beside others, in one run and one table. README.md says what is compared, and how."""
