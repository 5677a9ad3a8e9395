"""The emulator of the Kunlun stack's seams: the backend runs on it unchanged, without the chip. Patches nothing."""

from anychip_kunlun.emulator.open import close_stack, open_stack
from anychip_kunlun.emulator.profile import VARIABLE, Fault, Profile

__all__ = ["VARIABLE", "Fault", "Profile", "close_stack", "open_stack"]
