"""The tree of agents, and the results that each agent may see."""
