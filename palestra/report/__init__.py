"""The report of runs, one page of HTML, and their comparison."""
