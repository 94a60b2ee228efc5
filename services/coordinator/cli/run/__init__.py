"""`shoal run ...`: the group of commands, assembled here in the order of its help."""

from services.coordinator.cli.run import control, views
from services.coordinator.cli.shared.options import command_group

app = command_group("Start, watch, and control runs.")
app.command()(control.start)
app.command("list")(views.list_runs)
app.command()(views.status)
app.command()(views.watch)
app.command()(views.rollouts)
app.command()(control.pause)
app.command()(control.resume)
app.command()(control.update)
app.command()(control.stop)
app.command()(control.checkpoint)
app.command()(control.evaluate)
app.command()(control.profile)
