"""Who answers: agents, their handle on the client and on the model, and tools."""
