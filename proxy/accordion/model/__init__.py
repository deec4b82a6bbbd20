"""Pure values and functions: no I/O, no clock, nothing but the standard library's types."""
