"""Sweeps: many runs that search for better hyperparameters. Optuna decides; each run is a `palestra train`."""
