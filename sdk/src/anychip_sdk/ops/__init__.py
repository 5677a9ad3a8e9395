"""The op catalogue: every operation that the engine runs on a device. Knows references; knows no kernels.

An op stands in its family's file with all that is known of it; what a family lists can be imported from here.
"""

from anychip_sdk.ops.attention import *
from anychip_sdk.ops.base import *
from anychip_sdk.ops.blocks import *
from anychip_sdk.ops.convolution import *
from anychip_sdk.ops.delta import *
from anychip_sdk.ops.elementwise import *
from anychip_sdk.ops.experts import *
from anychip_sdk.ops.experts_quantized import *
from anychip_sdk.ops.gating import *
from anychip_sdk.ops.kv import *
from anychip_sdk.ops.latent import *
from anychip_sdk.ops.linear import *
from anychip_sdk.ops.norm import *
from anychip_sdk.ops.quantized import *
from anychip_sdk.ops.rope import *
from anychip_sdk.ops.routing import *
from anychip_sdk.ops.sampling import *
