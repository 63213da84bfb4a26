"""What small encoders know: minimal pairs, masked words of held-out text, parts of speech.

Each probe reads the files of its data as their authors released them, also where they are packed with xz.
"""
