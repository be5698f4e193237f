package fabric

// Stage is a part of the time from the arrival of a command to the end of its response.
type Stage uint8

// The stages. A command is in one of them at any time.
const (
	StageWait     Stage = iota // for memory, or at a limit
	StageHostData              // until the data of a write has been transferred from the host
	StageBackend               // until the handler has completed the command
	StageResponse              // until the response has left, with the data of a read
	Stages
)

// String returns the name of the stage in the control interface and the metrics.
func (s Stage) String() string {
	return [...]string{"wait", "host_data", "backend", "response"}[s]
}

// Spent adds the time since Start or the last call to stage s; now is a reading of Loop.Clock. A
// stage that takes no time need not be counted: the next call includes it. So the stages add up to
// the time from Start to the last call.
func (r *Request) Spent(s Stage, now int64) {
	t := &r.Stages
	t[s] += now - r.Start - t[StageWait] - t[StageHostData] - t[StageBackend] - t[StageResponse]
}
