"""Robots and models talk in words here: instructions, prompts, names of objects, answers, memory."""
