"""The live page: what the policies, queues and stores of this process do, for a person on call.

    app = abate.observe.page.app(token=TOKEN)      # an ASGI app, to mount in your own
    with abate.observe.page.serving(port=8321):    # or served beside any program, from a thread
        main()

* The page is read-only.
* With a token it answers requests that carry it. Without one it answers this machine only: say `local_only=True`, or
  serve it on loopback.
* From its creation on, calls are counted and events are kept, in bounded memory. State is read once a second; stores,
  which take their time to answer, every few seconds and in a thread.
* Texts from peers (keys, names, errors) are cut, sent as JSON and shown as text.

It needs `abate[page]`: starlette.
"""

from abate.optional_dependencies import requires_extra

with requires_extra(by="abate.observe.page", extra="page"):
    from abate.observe.page.asgi_app import app
    from abate.observe.page.server import serving

__all__ = ["app", "serving"]


def __dir__() -> list[str]:
    return sorted(__all__)
