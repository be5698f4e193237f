package admin

import "github.com/nvmf-target/nvmf-target/nvme"

// Reply is the result of a command: data, or a status.
type Reply struct {
	Data   []byte
	Status nvme.Status
	// Work is called first, by another goroutine, in the turn of the host. If it has not returned
	// after AnswerWait, the command fails.
	Work func()
	// Queries, in place of Work, are asked. One without an answer after AnswerWait keeps its last
	// one.
	Queries []Asker
	// Build is called by the reactor afterwards. It returns the reply, or one with further work or
	// queries. It does not use the command.
	Build func() Reply
}

// Refused is the reply to a command that names an object that does not exist.
var Refused = Reply{Status: nvme.InvalidField | nvme.DNR}

// Page is a reply with data that Elsewhere makes.
func Page(make func() []byte) Reply {
	return Elsewhere(make, func(data []byte) Reply { return Reply{Data: data} })
}

// Elsewhere calls make as Work, because its time grows with the number of controllers, namespaces
// or subsystems, and then, with the result, on the reactor.
func Elsewhere[T any](make func() T, then func(T) Reply) Reply {
	var made T
	return Reply{Work: func() { made = make() }, Build: func() Reply { return then(made) }}
}
