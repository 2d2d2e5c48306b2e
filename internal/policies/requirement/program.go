package requirement

import "strconv"

// A Program has conditions in CEL, on images or on pods. It is met if all validations are true, or if it is not for the
// image or the pod.
type Program struct {
	OnPods                 bool
	Variables, Validations []Expression
	// Annotations are texts about a pod for the audit log of the API server, whatever is decided. Their names are keys.
	Annotations []Expression
	// Images are expressions and Globs patterns of which an image must match one; all images match if there is neither.
	Images []Expression
	Globs  []Pattern
	// Request are the fields that conditions on a request can name; nil means the usual ones. Known are the paths of those
	// of its object, with [*] for an index; nil means all.
	Request, Known []string
	// Conditions must be true of a pod, or the program is not for it.
	Conditions []Expression
	// Evidence is what the validations can require of an image, and Required that one of it must count. A program for
	// pods has none.
	Evidence []Evidence
	Required bool
	// VerifyDigest says that the images of a pod must be named by digests, and InTemplates that those of pod templates
	// must, too.
	VerifyDigest, InTemplates bool
}

// An Expression is a text in CEL. Name is that of a variable or of a condition.
type Expression struct {
	Name, Text string
	// Message is for the user of a pod that is denied, MessageText an expression that returns it; each may be empty.
	Message, MessageText string
	At                   string // the place in the file of the policy, for errors
}

// Evidence is a signature of an attestor, or an attestation by it. Expressions name both by their names.
type Evidence struct {
	Attestor, Attestation string
	By                    Requirement
}

// Expressions returns all expressions but those of messages.
func (p *Program) Expressions() (all []Expression) {
	for _, list := range [][]Expression{p.Variables, p.Images, p.Conditions, p.Validations, p.Annotations} {
		all = append(all, list...)
	}
	return all
}

func (p *Program) canonical() string {
	list := func(name string, of []Expression) string {
		texts := make([]string, len(of))
		for i, e := range of {
			texts[i] = call("expression", quote(e.Name), quote(e.Text))
		}
		return call(name, texts...)
	}
	parts := []string{
		call("functions", "1"), // the version of what expressions mean
		list("variables", p.Variables), list("images", p.Images), list("validations", p.Validations),
		call("required", strconv.FormatBool(p.Required)),
	}
	for _, g := range p.Globs {
		parts = append(parts, call("glob", quote(g.String())))
	}
	for _, e := range p.Evidence {
		parts = append(parts, call("evidence", quote(e.Attestor), quote(e.Attestation), e.By.canonical()))
	}
	return call("cel", parts...)
}
