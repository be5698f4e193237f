package app

import (
	"context"
	"errors"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/doctor"
)

// askTimeout is how long the target that runs may take to say what it has counted.
const askTimeout = 5 * time.Second

// underLoad asks the target at a control socket.
func underLoad(socket string) []doctor.Finding {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	client := control.NewClient(socket)
	defer client.Close()
	latencies, err := client.Latency(ctx)
	connections, err2 := client.Connections(ctx)
	if err := errors.Join(err, err2); err != nil {
		return []doctor.Finding{{
			Check: "load", Severity: doctor.Note, Found: err.Error(),
			Why: "What the target that runs has counted is not looked at.",
			Fix: "nvmf-target doctor as root, or as a member of control.group",
		}}
	}
	list := doctor.Load(latencies, connections)
	if list == nil {
		list = []doctor.Finding{{
			Check: "load", Severity: doctor.OK,
			Found: "the target that runs has counted no slow commands, losses or full queues",
		}}
	}
	return list
}
