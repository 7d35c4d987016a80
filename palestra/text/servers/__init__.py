"""Models behind servers with OpenAI's interface: how they are called and tuned, and what that costs."""
