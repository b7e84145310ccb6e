"""What robots and models say to each other in words: instructions, prompts, names of objects, answers, memory."""
