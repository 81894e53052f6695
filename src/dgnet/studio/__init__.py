"""`dgnet studio`: a page on this computer in which sources are drawn with the mouse and the field follows at once.

Imports nothing itself: the process that reads an uploaded mesh (`reading`) starts in a moment.
"""
