"""Rules and attacks of other projects as plug-ins: one file for each project, imported when used.

Nothing that a rule of another project says of itself is believed: `Defense.tolerates` is 0, it has
no symmetry and no closed form, so searches simulate it.
"""
