package app

import (
	"slices"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
)

func (s *Server) refusals() (list []control.Refusal) {
	for _, r := range s.recorder.Refusals() {
		out := control.Refusal{
			First: r.First, Last: r.Last, Count: r.Count, Message: r.Message,
		}
		if r.Remote.IsValid() {
			out.Remote = r.Remote.String()
		}
		fields := map[string]*string{
			"expected": &out.Expected, "received": &out.Received, "hint": &out.Hint,
		}
		out.Attributes = slices.DeleteFunc(attributes(r.Attributes),
			func(a control.Attribute) bool {
				field, ok := fields[a.Key]
				if ok {
					*field = a.Value
				}
				return ok
			})
		list = append(list, out)
	}
	return list
}

func (s *Server) events(since uint64) (list []control.Event, changed <-chan struct{}) {
	events, changed := s.recorder.Events(since)
	for _, e := range events {
		list = append(list, control.Event{
			ID: e.ID, Time: e.Time, Level: e.Level.String(), Message: e.Message,
			Attributes: attributes(e.Attributes),
		})
	}
	return list, changed
}

func attributes(list []ratelog.Attribute) []control.Attribute {
	out := make([]control.Attribute, len(list))
	for i, a := range list {
		out[i] = control.Attribute(a)
	}
	return out
}
