package control

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/nvmf-target/nvmf-target/internal/secret"
)

// Error is one line for each problem.
func (p *Problem) Error() string {
	var b strings.Builder
	if p.Place != "" {
		b.WriteString(p.Place + ": ")
	}
	b.WriteString(p.Detail)
	if p.Hint != "" {
		b.WriteString(". " + p.Hint)
	}
	for _, m := range p.More {
		b.WriteString("\n" + m.Error())
	}
	return b.String()
}

// NewProblem makes a Problem with the title of its status.
func NewProblem(status int, detail, hint string) *Problem {
	return &Problem{Title: http.StatusText(status), Status: status, Detail: detail, Hint: hint}
}

// At returns the problem with its place, such as a key of the request.
func (p *Problem) At(place string) *Problem {
	p.Place = place
	return p
}

// The media types besides JSON.
const (
	problemType = "application/problem+json"
	eventsType  = "application/x-ndjson"
)

// encode returns the text of a request.
func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	return append(b, '\n'), err
}

// encodeAnswer returns the text of an answer, with secrets masked.
func encodeAnswer(v any) ([]byte, error) {
	b, err := encode(v)
	return []byte(secret.Mask(string(b))), err
}
