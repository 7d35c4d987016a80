"""Clock, timing, intervals, signals, threads, statistics: what any long-running program needs."""
