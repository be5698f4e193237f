package admin

import "github.com/nvmf-target/nvmf-target/nvme"

// Reply is the result of a command: data, or a status.
type Reply struct {
	Data   []byte
	Status nvme.Status
	// Queries are asked first. When all have answers, or AnswerWait is over, the reactor calls
	// Build, which returns the reply or one with further queries. Build does not use the command.
	Queries []Asker
	Build   func() Reply
}

// Refused is the reply to a command that names an object that does not exist.
var Refused = Reply{Status: nvme.InvalidField | nvme.DNR}

// Page is a reply with data that Elsewhere makes.
func Page(make func() []byte) Reply {
	return Elsewhere(make, func(data []byte) Reply { return Reply{Data: data} })
}

// Elsewhere calls make on an ordinary goroutine, because its time grows with the number of
// controllers or namespaces, and then, with the result, on the reactor.
func Elsewhere[T any](make func() T, then func(T) Reply) Reply {
	q := &Query[T]{Ask: func() (*T, error) {
		made := make()
		return &made, nil
	}}
	return Reply{Queries: []Asker{q}, Build: func() Reply {
		made, _, _ := q.Peek()
		if made == nil { // the machine is too busy
			return Reply{Status: nvme.InternalError}
		}
		return then(*made)
	}}
}
