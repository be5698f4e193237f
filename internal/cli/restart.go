package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/observed"
)

func restartCommand() *cobra.Command {
	timeout := time.Minute
	cmd := command("restart", "Replace the process of the target with a new one", cobra.NoArgs,
		func(ctx context.Context, c *control.Client, _ []string) (observed.Status, error) {
			next, err := c.Restart(ctx)
			if err != nil {
				return observed.Status{}, err
			}
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			return awaitSuccessor(ctx, c.Successor(next), next)
		}, status)
	cmd.Long = cmd.Short + ", and wait until the new one serves. The new process reads the " +
		"configuration and listens on RDMA devices before the running process asks hosts to " +
		"reset their controllers and exits. So hosts of these devices stall for a shorter time " +
		"than with systemctl restart. If the new process refuses the configuration or cannot " +
		"listen, the running process continues. The target must be a service of systemd. " +
		"Changes to its unit and upgrades of the package need systemctl restart."
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait")
	return cmd
}

// awaitSuccessor waits until another process answers.
func awaitSuccessor(ctx context.Context, c *control.Client, next control.Succession,
) (observed.Status, error) {
	for {
		s, err := control.GetStatus.From(ctx, c)
		switch {
		case err == nil && s.PID == next.Successor:
			return s, nil
		case err == nil && s.PID != next.PID:
			return s, fmt.Errorf("process %d has ended, and process %d serves: the log has the "+
				"reason", next.Successor, s.PID)
		case ctx.Err() != nil:
			return s, errors.New("the new process does not serve yet: the log has the reason")
		}
		select {
		case <-time.After(drainEvery):
		case <-ctx.Done():
		}
	}
}
