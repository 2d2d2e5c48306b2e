package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sigstore/sigstore-go/pkg/fulcio/certificate"
	kjson "sigs.k8s.io/json"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// A validation is a leaf with conditions on the image, of a requirement whose other leaves are judged before it.
type validation struct {
	*leaf

	of *requirement.Requirement
}

// needs say what is collected for validations beside what signatures need.
type needs struct{ manifest, config, signatures, attestations, all bool }

func needsOf(list []validation, patch *condition.Patch) (n needs) {
	add := func(reads func(variable string) bool) {
		n.manifest = n.manifest || reads("image.manifest")
		n.config = n.config || reads("image.config")
		n.signatures = n.signatures || reads("signatures")
		n.attestations = n.attestations || reads("attestations")
	}
	for _, v := range list {
		if v.err == nil {
			add(v.conditions.Reads)
		}
	}
	add(patch.Reads)
	n.all = n.signatures || n.attestations // whether another one follows must not depend on the order of a registry
	return n
}

// maxEvidence bounds a document that conditions read, and the predicates together, in bytes.
const maxEvidence = 1 << 20

// A counted signature or statement is one that counts for a leaf.
type counted struct {
	names              map[string]any // as conditions read them
	predicate, subject json.RawMessage
	kind, digest       string // of the statement
}

// keep keeps what counts for a leaf, if a condition reads it. Of predicates that are too large it keeps nothing, and
// then complete returns an error.
func (r *run) keep(l *leaf, s *signature) {
	if !r.needs.all {
		return
	}
	c := counted{names: map[string]any{}}
	if k := l.signed.Key; k != nil {
		c.names["keyID"] = digestOf(k.Public)
	} else if got, err := certificate.SummarizeCertificate(s.certificate); err == nil {
		c.names["issuer"], c.names["subject"] = got.Issuer, got.SubjectAlternativeName
	}
	if want := l.signed.Statement; want != nil {
		c.names["predicateType"] = want.PredicateType
		c.kind, c.digest = s.statement.Type, s.payloadDigest
		if r.needs.attestations {
			if r.kept += len(s.statement.Predicate) + len(s.statement.Subject); r.kept > maxEvidence {
				return
			}
			c.predicate, c.subject = slices.Clone(s.statement.Predicate), slices.Clone(s.statement.Subject)
		}
	}
	l.counting = append(l.counting, c)
}

// validate judges the conditions on the image, each after the other leaves of its requirement are met, and gets the
// values for a patch.
func (r *run) validate(ctx context.Context) {
	due := slices.DeleteFunc(slices.Clone(r.validations), func(v validation) bool {
		return v.err != nil || r.platform == "" || !r.signed(v.of)
	})
	fills := r.image.Patch != nil && r.platform != "" && r.signed(r.want[0].Requirement)
	if len(due) == 0 && !fills {
		return
	}
	var image map[string]any
	end, err := func() {}, r.complete()
	if err == nil {
		image, end, err = r.describe(ctx)
	}
	defer end()
	for _, v := range due {
		result, failed := condition.Result{}, err
		if failed == nil {
			result, failed = guarded(func() (condition.Result, error) { return r.judgeImage(ctx, v, image) })
		}
		switch {
		case failed != nil && ctx.Err() != nil:
			r.failed(ctx, r.repository, failed)
			return
		case failed != nil:
			v.miss = missOf(failed)
		default:
			v.signer, v.digest, v.evaluated = v.signed.String(), r.platform, result
		}
	}
	if fills { // whether the requirement is met, result decides
		if r.values, r.unfilled = r.fill(image, err); ctx.Err() != nil { // not all evidence can have been read
			r.values, r.unfilled = nil, fmt.Errorf("%w: %w", registry.ErrUnavailable, ctx.Err())
		}
	}
}

// fill returns the values for the patch. err is why there is no image.
func (r *run) fill(image map[string]any, err error) (map[string]any, error) {
	if err != nil {
		return nil, err
	}
	return guarded(func() (map[string]any, error) {
		document, err := r.document(r.want[0].Requirement, image)
		if err != nil {
			return nil, err
		}
		return r.image.Patch.ImageValues(document)
	})
}

// complete returns an error if conditions on all signatures and attestations would be judged without some of them.
func (r *run) complete() error {
	if r.kept > maxEvidence {
		return fmt.Errorf("%w: conditions read attestations of at most %d bytes in all", registry.ErrTooLarge, maxEvidence)
	}
	for _, p := range r.problems {
		switch {
		case !r.needs.all:
		case p.resolving && p.reason == requirement.ContentMismatch: // what leads to another image
		case p.reason == requirement.RegistryUnavailable:
			return fmt.Errorf("%w: %s", registry.ErrUnavailable, p.text)
		default:
			return fmt.Errorf("%w: conditions on signatures need all of them: %s", registry.ErrTooLarge, p.text)
		}
	}
	return nil
}

// An imageDocument is a document of an image, which a runtime decodes into a type.
type imageDocument struct {
	name          string
	data          []byte
	exact, folded any // pointers to the type
}

// decode returns the document. A runtime takes fields in any case, and merges those that are there twice: a document
// that it would read in another way than conditions is an error.
func (d imageDocument) decode() (object map[string]any, err error) {
	twice, err := kjson.UnmarshalStrict(d.data, d.exact, kjson.DisallowDuplicateFields)
	switch {
	case err != nil || json.Unmarshal(d.data, &object) != nil || object == nil:
		return nil, fmt.Errorf("%w: the %s of the image is not an object with the fields of one", registry.ErrMalformed,
			d.name)
	case twice != nil || json.Unmarshal(d.data, d.folded) != nil || !reflect.DeepEqual(d.exact, d.folded):
		return nil, fmt.Errorf("%w: the %s of the image has a field twice, or in another case", registry.ErrMalformed, d.name)
	}
	return object, nil
}

// describe returns what conditions read of the image. end ends the turn to decode it.
func (r *run) describe(ctx context.Context) (image map[string]any, end func(), err error) {
	host, repository, _ := strings.Cut(r.repository, "/")
	image = map[string]any{"registry": host, "repository": repository, "digest": r.platform}
	end = func() {}
	var documents []imageDocument
	if r.needs.config {
		data, err := r.blob(ctx, r.repository, r.image.ID)
		switch {
		case errors.Is(err, registry.ErrNotFound):
			return nil, end, fmt.Errorf("%w: the registry does not have the configuration of the image", registry.ErrDenied)
		case err != nil:
			return nil, end, fmt.Errorf("the configuration of the image: %w", err)
		}
		documents = append(documents, imageDocument{"config", data, &ocispec.Image{}, &ocispec.Image{}})
	}
	if r.needs.manifest {
		documents = append(documents, imageDocument{"manifest", r.manifestData, &ocispec.Manifest{}, &ocispec.Manifest{}})
	}
	all := 0
	count := func(data []byte) {
		parts, depth := registry.Parts(data)
		if all += parts; all > maxPredicateParts || depth > maxPredicateDepth || len(data) > maxEvidence {
			err = fmt.Errorf("%w: conditions read at most %d bytes of a document, %d parts in all, nested at most %d deep",
				registry.ErrTooLarge, maxEvidence, maxPredicateParts, maxPredicateDepth)
		}
	}
	for _, d := range documents {
		count(d.data)
	}
	for _, l := range r.order {
		for _, c := range l.counting {
			count(c.predicate)
			count(c.subject)
		}
	}
	if err != nil {
		return nil, end, err
	}
	if end, err = registry.Decoding(ctx, int64(all)*predicatePart); err != nil {
		return nil, end, err
	}
	for _, d := range documents {
		if image[d.name], err = d.decode(); err != nil {
			return nil, end, err
		}
	}
	return image, end, nil
}

// document returns what expressions read of the image and of what counts for a requirement.
func (r *run) document(of *requirement.Requirement, image map[string]any) (map[string]any, error) {
	signatures, attestations := []any{}, []any{}
	for _, s := range of.Signers() {
		if l := r.leaves[s]; r.needs.all && l.err != nil { // what it would count is not known
			return nil, l.err
		}
		for _, c := range r.leaves[s].counting {
			if s.Statement == nil {
				signatures = append(signatures, c.names)
				continue
			}
			entry := maps.Clone(c.names)
			var predicate map[string]any
			if r.needs.attestations {
				if json.Unmarshal(c.predicate, &predicate) != nil || predicate == nil {
					return nil, errNoObject
				}
				entry["predicate"] = predicate
			}
			attestations = append(attestations, entry)
		}
	}
	return map[string]any{"image": image, "signatures": signatures, "attestations": attestations}, nil
}

func (r *run) judgeImage(ctx context.Context, v validation, image map[string]any) (condition.Result, error) {
	if v.signed.Image.Program != nil {
		return r.judgeProgram(ctx, v, image)
	}
	document, err := r.document(v.of, image)
	if err != nil {
		return condition.Result{}, err
	}
	now := time.Now()
	result, err := v.conditions.Evaluate(ctx, document, now)
	if r.list && err == nil {
		v.seen = unique(v.conditions.Describe(ctx, document, now))
	}
	if err == nil && !result.Met {
		err = fmt.Errorf("the image %w: %s", errCondition, safetext.ASCII(result.Why, maxMiss))
	}
	return result, err
}

// A reasoned error has the reason of a result.
type reasoned struct {
	error

	reason string
}

// judgeProgram judges conditions in CEL.
func (r *run) judgeProgram(ctx context.Context, v validation, image map[string]any) (condition.Result, error) {
	documents := map[string]any{"config": image["config"], "manifest": image["manifest"]} // names differ from Kyverno's
	e := condition.Evidence{
		Repository: r.repository, Documents: documents, Signed: map[string]bool{}, Statements: map[string][]condition.Said{},
	}
	for _, of := range v.signed.Image.Program.Evidence {
		if of.Attestation == "" {
			e.Signed[of.Attestor] = r.metBy(&of.By)
			continue
		}
		list := e.Statements[of.Attestation]
		for _, s := range of.By.Signers() {
			for _, c := range r.leaves[s].counting {
				i := slices.IndexFunc(list, func(s condition.Said) bool { return s.Digest == c.digest })
				if i < 0 {
					i, list = len(list), append(list, condition.Said{Digest: c.digest, Document: c.document()})
				}
				list[i].By = append(list[i].By, of.Attestor)
			}
		}
		e.Statements[of.Attestation] = list
	}
	result, err := v.conditions.EvaluateImage(ctx, e)
	if err != nil {
		return result, err
	}
	if result.Met {
		for _, met := range v.signed.Image.Program.Validations {
			if r.list {
				v.seen = append(v.seen, "met: "+strings.Join(strings.Fields(met.Text), " "))
			}
		}
		return result, nil
	}
	why, reason := result.Why, requirement.ConditionNotMet
	for _, of := range v.signed.Image.Program.Evidence {
		if !slices.Contains(result.Lacks, condition.Lack{Attestor: of.Attestor, Attestation: of.Attestation}) {
			continue
		}
		if reason == requirement.ConditionNotMet {
			reason = requirement.SignatureMissing
		}
		if of.Attestation != "" && rank(reason) < rank(requirement.AttestationMissing) {
			reason = requirement.AttestationMissing
		}
		for _, s := range of.By.Signers() {
			if l := r.leaves[s]; rank(l.miss.reason) > rank(reason) {
				reason = l.miss.reason
				why += "; " + l.miss.text
			}
		}
	}
	return result, &reasoned{fmt.Errorf("the image %w: %s", errCondition, safetext.ASCII(why, maxMiss)), reason}
}

// document returns a statement as extractPayload does.
func (c counted) document() map[string]any {
	document := map[string]any{"_type": c.kind, "predicateType": c.names["predicateType"]}
	for name, data := range map[string]json.RawMessage{"predicate": c.predicate, "subject": c.subject} {
		var value any
		if data != nil && json.Unmarshal(data, &value) == nil {
			document[name] = value
		}
	}
	return document
}
