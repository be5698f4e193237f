// Package observed has the facts that a target shows of itself, each as one type. The code that
// knows a fact fills it in; the control interface, the metrics, the page, doctor and the commands
// read it. The JSON is that of the control interface, and openapi.json has the comments.
package observed
