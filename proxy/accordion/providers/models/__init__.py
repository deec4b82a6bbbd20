"""Models: token counts, context windows, embeddings, and requests for summaries."""
