"""Which agent works for which, and what each may see."""
