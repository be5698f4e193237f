// Package event defines the events that peers and clients cause. The line in the log, the record in
// the audit, the refusal and its metric, and the event of the control interface derive from a Kind.
package event

import (
	"context"
	"log/slog"
)

// Kind is a kind of event.
type Kind struct {
	Level   slog.Level
	Message string
	// Refusal reports whether a peer was refused, or its connection ended because of it.
	Refusal bool
	// Audit is the subject of the record, "" if there is none, and Outcome its outcome.
	Audit, Outcome string
}

// The subjects of records in the audit.
const (
	authentication = "authentication"
	refusals       = "refusal"
	administration = "administration"
)

type key struct{}

// Of returns the kind of the line with a context, nil if it has none.
func Of(ctx context.Context) *Kind {
	k, _ := ctx.Value(key{}).(*Kind)
	return k
}

// Report logs an event with keys and values. Handlers get the kind with the context.
func (k *Kind) Report(log *slog.Logger, args ...any) {
	log.Log(context.WithValue(context.Background(), key{}, k), k.Level, k.Message, args...)
}

// About returns the same kind with a message that continues with text.
func (k Kind) About(text string) *Kind {
	k.Message += ": " + text
	return &k
}

// Dropped returns the kind of a line that counts dropped lines of kind k.
func (k Kind) Dropped() *Kind {
	return &Kind{slog.LevelWarn, "log lines were dropped", false, k.Audit, "lost"}
}

func info(message, audit string) *Kind {
	return &Kind{slog.LevelInfo, message, false, audit, "success"}
}

func failure(level slog.Level, message, audit string) *Kind {
	return &Kind{level, message, false, audit, "failure"}
}

// refusal makes a kind with a message that no other refusal has: it is a label of a metric.
func refusal(message, audit string) *Kind {
	return &Kind{slog.LevelWarn, message, true, audit, "failure"}
}
