"""What one can leave out of the program: a package for each feature, with everything that is its own.

composition/features.py has their interface and their list. Features import the core, and not each other.
"""
