package admin

import "github.com/nvmf-target/nvmf-target/nvme"

// Reply is the result of a command: data, or a status.
type Reply struct {
	Data   []byte
	Status nvme.Status
	// Queries, if any, have the answers that the reply is made of. When they are there, or
	// AnswerWait is over, Build makes it, on the reactor, or one with further queries. Build does
	// not use the command.
	Queries []Asker
	Build   func() Reply
}

// Refused is the reply of a command that names something that there is not.
var Refused = Reply{Status: nvme.InvalidField | nvme.DNR}

// Elsewhere makes something on an ordinary goroutine, because that takes longer the more
// controllers or namespaces there are, and a reply of it on the reactor.
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
