package condition

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	celop "github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// Evidence is what was found about an image, for conditions in CEL.
type Evidence struct {
	Repository string
	Signed     map[string]bool   // names of attestors that have signed the image
	Statements map[string][]Said // by the name of the attestation
	Documents  map[string]any    // what is known about the image, such as its configuration
}

// Said is a statement with those who have signed it.
type Said struct {
	By       []string
	Document map[string]any
	Digest   string
}

// maxChoices bounds how many combinations of statements are evaluated.
const maxChoices = 64

// An evaluationOfImage has what the functions of one evaluation need.
type evaluationOfImage struct {
	Evidence
	chosen   map[string]Said
	verified map[string][]string // names of attestors whose statement was found, by the attestation
	counted  bool                // a signature or a statement counted
	lacks    []Lack
	notes    []string
}

// A budget is what all evaluations of a program may cost.
type budget struct {
	ctx  context.Context //nolint:containedctx // of the evaluation, for variables that are evaluated when they are read
	left uint64
}

var errBudget = errors.New("the expressions cost more than is allowed in all")

// evaluate returns the value of an expression. Its error has no value of a document that is not shortened.
func (b *budget) evaluate(e compiledExpression, data map[string]any) (ref.Val, error) {
	data[budgetName] = b
	v, details, err := e.ContextEval(b.ctx, data)
	cost := uint64(costOfOne) // unless it is known: it is not after the limit
	if known := details.ActualCost(); known != nil {
		cost = *known
	}
	if !b.spend(cost) {
		return nil, errBudget
	}
	if err == nil {
		if failed, ok := v.(*types.Err); ok {
			err = failed
		}
	}
	if err != nil {
		text := strings.ReplaceAll(err.Error(), "\n", " ")
		return nil, errors.New(text[:min(len(text), maxShown)])
	}
	return v, nil
}

func (b *budget) spend(cost uint64) bool {
	if cost > b.left {
		b.left = 0
		return false
	}
	b.left -= cost
	return true
}

// weigh returns the size of a value with all its parts, as far as it is below a limit. A value that is in a document or
// in a list several times counts each time, as a comparison looks at it.
func weigh(v ref.Val, limit uint64) (n uint64) {
	n = 1
	switch v := v.(type) {
	case *types.Optional:
		if v.HasValue() {
			n += weigh(v.GetValue(), limit-min(1, limit))
		}
	case traits.Lister:
		for i := v.Iterator(); n < limit && i.HasNext() == types.True; {
			n += weigh(i.Next(), limit-n)
		}
	case traits.Mapper:
		for i := v.Iterator(); n < limit && i.HasNext() == types.True; {
			key := i.Next()
			n += 1 + weigh(v.Get(key), limit-min(n, limit))
		}
	case traits.Sizer:
		size, _ := v.Size().Value().(int64)
		n += uint64(size) / 10 //nolint:gosec // a size
	}
	return n
}

// costs are those of functions that look at all of a value; cel-go takes only its own size, or nothing if its type is
// not known.
type costs struct{}

// CallCost returns nil for a cost as cel-go has it.
func (costs) CallCost(function, _ string, args []ref.Val, result ref.Val) *uint64 {
	var n uint64
	switch function {
	case celop.Equals, celop.NotEquals:
		n = min(weigh(args[0], costOfOne), weigh(args[1], costOfOne))
	case celop.In, celop.OldIn:
		n = weigh(args[1], costOfOne) + weigh(args[0], costOfOne)
	case celop.Add:
		n = weigh(args[1], costOfOne)
		if _, mutable := args[0].(traits.MutableLister); !mutable { // otherwise the one of a macro
			if sized, ok := result.(traits.Sizer); ok {
				size, _ := sized.Size().Value().(int64)
				n += uint64(size) / 10 //nolint:gosec // a size
			}
		}
	default:
		return nil
	}
	return &n
}

// A sum is an addition. A list that results has at most maxList elements, and does not consist of others, so that it
// takes no longer to be read.
type sum struct{ interpreter.InterpretableCall }

// Exec returns the sum.
func (s sum) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	v := s.InterpretableCall.Exec(frame)
	list, ok := v.(traits.Lister)
	if !ok {
		return v
	}
	size, _ := list.Size().Value().(int64)
	if size > maxList {
		return types.NewErr("a list must have at most %d elements", maxList)
	}
	if _, mutable := v.(traits.MutableLister); mutable {
		return v
	}
	all := make([]ref.Val, 0, size)
	for i := list.Iterator(); i.HasNext() == types.True; {
		all = append(all, i.Next())
	}
	return types.NewRefValList(types.DefaultTypeAdapter, all)
}

// A literal is a list or a map, whose parts can be several times in it.
type literal struct {
	interpreter.InterpretableConstructor
}

// Exec returns the value.
func (l literal) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	v := l.InterpretableConstructor.Exec(frame)
	found, _ := frame.ResolveName(budgetName)
	if b, ok := found.(*budget); ok && !types.IsError(v) && !b.spend(weigh(v, b.left+1)) {
		return types.WrapErr(errBudget)
	}
	return v
}

const budgetName = "@budget" // no identifier in an expression

func bounded(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	switch i := i.(type) {
	case interpreter.InterpretableConstructor:
		return literal{i}, nil
	case interpreter.InterpretableCall:
		if i.Function() == celop.Add {
			return sum{i}, nil
		}
	}
	return i, nil
}

// environment returns the variables of a program beside others, which are evaluated when they are read.
func (p *program) environment(b *budget, data map[string]any) map[string]any {
	for _, v := range p.variables {
		data["variables."+v.Name] = func() ref.Val {
			value, err := b.evaluate(v, data)
			if err != nil {
				return types.WrapErr(err)
			}
			return value
		}
	}
	return data
}

// Applies reports whether conditions are for an image. What cannot be evaluated is for every image.
func (c *Compiled) Applies(ctx context.Context, image imageref.Ref) bool {
	if c == nil || c.program == nil {
		return true
	}
	b := &budget{ctx: ctx, left: costOfAll}
	return c.program.applies(b, image)
}

func (p *program) applies(b *budget, image imageref.Ref) bool {
	if len(p.from.Globs)+len(p.images) == 0 || !image.Parsed() {
		return true
	}
	for _, g := range p.from.Globs {
		if g.Matches(image.Name()) {
			return true
		}
	}
	return slices.ContainsFunc(p.images, func(e compiledExpression) bool {
		v, err := b.evaluate(e, map[string]any{"ref": opaque{kind: celImage, text: image.Repository()}})
		return err != nil || v != types.False
	})
}

// EvaluateImage evaluates a program on what was found about an image. If there are several statements of an attestation
// that is read, one must meet everything that is said about it. The error is that of ctx.
func (c *Compiled) EvaluateImage(ctx context.Context, e Evidence) (Result, error) {
	p, b := c.program, &budget{ctx: ctx, left: costOfAll}
	choices := []map[string]Said{{}}
	for _, name := range p.payloads {
		var more []map[string]Said
		for _, before := range choices {
			for _, s := range e.Statements[name] {
				choice := maps.Clone(before)
				choice[name] = s
				more = append(more, choice)
			}
		}
		if len(more) > maxChoices {
			return Result{Why: fmt.Sprintf("there are more than %d combinations of attestations", maxChoices)}, nil
		}
		if more != nil { // without a statement, extractPayload is an error
			choices = more
		}
	}
	var first Result
	for _, choice := range choices {
		r := p.image(b, &evaluationOfImage{Evidence: e, chosen: choice, verified: map[string][]string{}})
		if err := ctx.Err(); err != nil {
			return Result{}, err
		}
		if r.Met {
			r.Open = p.readsClock
			return r, nil
		}
		if first.Why == "" {
			first = r
		}
	}
	return first, nil
}

func (p *program) image(b *budget, e *evaluationOfImage) Result {
	list := []ref.Val{opaque{kind: celImage, text: e.Repository, in: e}}
	images, attestors, attestations := map[string]any{}, map[string]any{}, map[string]any{}
	for _, name := range imageLists() {
		images[name] = list
	}
	for _, v := range p.from.Evidence {
		attestors[v.Attestor] = opaque{kind: celAttestor, text: v.Attestor}
		attestations[v.Attestation] = v.Attestation
	}
	data := p.environment(b, map[string]any{"images": images, "attestors": attestors, "attestations": attestations})
	why := p.validate(b, data, func() { e.notes, e.lacks = nil, nil })
	if why == "" && p.from.Required && !e.counted {
		why = "no validation has verified the image, and validationConfigurations.required is true"
	}
	if why != "" && e.notes != nil {
		slices.Sort(e.notes)
		why += "; " + strings.Join(slices.Compact(e.notes), "; ")
	}
	return Result{Met: why == "", Why: why, Lacks: e.lacks}
}

// validate returns why the first validation that is not true is not; "" if all are. It calls begin before each one.
func (p *program) validate(b *budget, data map[string]any, begin func()) string {
	for _, v := range p.validations {
		begin()
		value, err := b.evaluate(v, data)
		if err == nil && value == types.True {
			continue
		}
		text := v.Message
		if v.message != nil {
			if m, failed := b.evaluate(compiledExpression{Program: v.message}, data); failed == nil {
				text, _ = m.Value().(string)
			}
		}
		expression := strings.Join(strings.Fields(v.Text), " ")
		text = cmp.Or(text[:min(len(text), maxShown)], "not true: "+expression[:min(len(expression), maxShown)])
		if err != nil {
			text += "; " + err.Error()
		}
		return text
	}
	return ""
}

// pod evaluates a program on a pod.
func (p *program) pod(ctx context.Context, document any) (Result, error) {
	root, _ := document.(map[string]any)
	request, _ := root["request"].(map[string]any)
	template, _ := root["template"].(bool)
	b := &budget{ctx: ctx, left: costOfAll}
	all := imagesOf(request["object"])
	images := map[string]any{}
	why := ""
	for _, name := range imageLists() {
		list := []string{}
		for _, image := range all[name] {
			ref := imageref.New(image)
			if !p.applies(b, ref) {
				continue
			}
			list = append(list, image)
			if p.from.VerifyDigest && (!template || p.from.InTemplates) && !ref.Name().IsDigest() {
				why = cmp.Or(why, fmt.Sprintf("image %s is not named by a digest", shown(image)))
			}
		}
		images[name] = list
	}
	data := p.environment(b, podData(request))
	data["images"] = images
	why = cmp.Or(p.validate(b, data, func() {}), why)
	return Result{Met: why == "", Why: why, Annotations: p.annotate(b, data)}, ctx.Err()
}

// maxAnnotation bounds the value of an audit annotation, in characters.
const maxAnnotation = 1024

// annotate returns the audit annotations of a pod that have a value. One that cannot be evaluated says so.
func (p *program) annotate(b *budget, data map[string]any) (all map[string]string) {
	for _, e := range p.annotations {
		v, err := b.evaluate(e, data)
		var text string
		if err != nil {
			text = "cannot be evaluated: " + err.Error()
		} else if s, ok := v.(types.String); ok {
			text = string(s)
		}
		if text = safetext.ASCII(text, maxAnnotation); text != "" {
			if all == nil {
				all = map[string]string{}
			}
			all[e.Name] = text
		}
	}
	return all
}

func podData(request map[string]any) map[string]any {
	return map[string]any{"request": request, "object": request["object"], "oldObject": request["oldObject"]}
}

// Selects reports whether conditions select a pod. One that cannot be evaluated selects it.
func (c *Compiled) Selects(ctx context.Context, document map[string]any) bool {
	request, _ := document["request"].(map[string]any)
	b := &budget{ctx: ctx, left: costOfAll}
	return !slices.ContainsFunc(c.program.conditions, func(e compiledExpression) bool {
		v, err := b.evaluate(e, podData(request))
		return err == nil && v == types.False
	})
}

// imagesOf returns the images of a pod by the lists of its containers.
func imagesOf(object any) map[string][]string {
	images := map[string][]string{}
	pod, _ := object.(map[string]any)
	spec, _ := pod["spec"].(map[string]any)
	for _, name := range imageLists() {
		list, _ := spec[name].([]any)
		for _, c := range list {
			container, _ := c.(map[string]any)
			image, _ := container["image"].(string)
			images[name] = append(images[name], image)
		}
	}
	return images
}
