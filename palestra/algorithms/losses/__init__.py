"""Losses by name: what `algorithm: {name: on_policy}` and `{name: off_policy}` learn by.

To register one, add its config to AnyOnPolicyLoss in `on_policy.py`, or to AnyOffPolicyLoss in `off_policy.py`.
"""
