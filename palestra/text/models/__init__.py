"""Language models: how they answer prompts, and how they learn from answers."""
