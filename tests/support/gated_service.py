"""The real process of a service, with a scripted core that stops at gates; and the command that applies it.

`python gated_service.py serve GATES --revision FILE [--stand-by]` is the service, `python gated_service.py command
GATES ARGUMENTS` the command line. Gates: plan, undo, start-N, load-N, step-N, where N is the revision. To `undo`
comes an apply that was interrupted while a revision loads.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from anychip.deploy.launch import Launch, Planned
from anychip.deploy.running import FLAG
from support.gates import Gates

DRAIN_S = 3.0


def gated_launch(folder):
    def plan(loaded):
        Gates(folder).pass_through("plan")
        return Planned("stub", "the plan")

    def command(revision_path):
        return [sys.executable, __file__, "serve", str(folder), FLAG, str(revision_path)]

    return Launch(command=command, plan=plan, poll_s=0.03)


def make_core(argument, report):
    """The worker's core, see `anychip.engine.worker`."""
    from anychip.engine.messages import Progress
    from support.stub_core import StubCore

    gates, revision = Gates(argument["gates"]), argument["revision"]

    class GatedCore(StubCore):
        def step(self):
            gates.pass_through(f"step-{revision}")
            return super().step()

    report(Progress("weights", 1, 2, ""))
    gates.pass_through(f"load-{revision}")
    return GatedCore(reply=[[65]], endless=True, step_s=0.005)


def serve(folder, arguments):
    from anychip.deploy import service
    from anychip.server.serve import serve
    from anychip.server.settings import Served, ServerSettings
    from support.stub_text import StubTemplate, StubTokenizer

    revision = int(Path(arguments[1]).stem)

    def prepare():
        return Served(ServerSettings(drain_s=DRAIN_S), StubTokenizer(), StubTemplate())

    def serve_stub(host, port, core, prepare_real, **settings):
        core = "support.gated_service:make_core", {"gates": folder, "revision": revision}
        return serve(host, port, core, prepare, **settings)

    Gates(folder).pass_through(f"start-{revision}")
    service.serve = serve_stub
    return service.main(arguments)


def command(folder, arguments):
    import anychip.cli.apply as showing
    import anychip.deploy.apply as applying
    from anychip.cli.main import run

    class GatedBar(showing.Bar):
        def done(self):
            Gates(folder).pass_through("undo")
            super().done()

    showing.Bar = GatedBar
    applying.Launch = lambda: gated_launch(folder)
    sys.argv = ["platform", *arguments]
    run()


if __name__ == "__main__":
    sys.exit({"serve": serve, "command": command}[sys.argv[1]](sys.argv[2], sys.argv[3:]))
