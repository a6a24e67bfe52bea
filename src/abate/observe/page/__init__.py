"""The live page: what the policies, queues and stores of this process do, for a person on call.

    app = abate.observe.page.app(token=TOKEN)      # an ASGI app, to be mounted in your own
    with abate.observe.page.serving(port=8321):    # or served beside any program, from a thread of its own
        main()

* It only reads. There is nothing on it that changes anything.
* With a token it answers to whoever has it. Without one it answers to this machine alone, which has to be asked for
  (`local_only=True`) except where it is served on loopback.
* From the moment it is made, calls are counted and events are kept, in bounded memory. Everything else is read once a
  second, and a store, which takes its time to answer, every few seconds and in a thread.
* What a peer sent (keys, names, the texts of errors) is cut, sent as JSON and shown as text.

It needs `abate[page]`: starlette.
"""

from abate.observe.extras import needed

with needed(by="abate.observe.page", extra="page"):
    from abate.observe.page.server import serving
    from abate.observe.page.site import app

__all__ = ["app", "serving"]
