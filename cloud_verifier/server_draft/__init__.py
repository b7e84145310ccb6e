"""A draft model beside the target: what it drafts, what that is worth, and what it takes."""
