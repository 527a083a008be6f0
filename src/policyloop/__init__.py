"""policyloop: train, prove, ship, watch, roll back, collect, retrain language models by reinforcement learning."""

__version__ = "0.1.0"
