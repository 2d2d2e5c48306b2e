package condition_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// programOf returns a program with validations, for images with the attestors a and b and the attestation scan.
func programOf(onPods bool, validations ...string) *requirement.Program {
	p := &requirement.Program{OnPods: onPods}
	for i, text := range validations {
		at := fmt.Sprintf("spec.validations[%d].expression", i)
		p.Validations = append(p.Validations, requirement.Expression{Text: text, At: at})
	}
	if !onPods {
		for _, attestor := range []string{"a", "b"} {
			for _, attestation := range []string{"", "scan"} {
				p.Evidence = append(p.Evidence, requirement.Evidence{Attestor: attestor, Attestation: attestation})
			}
		}
	}
	return p
}

func compileCEL(p *requirement.Program) (*condition.Compiled, error) {
	c, errs := condition.CompileValidation(&requirement.Validation{Program: p})
	return c, errs.ToAggregate()
}

const signedBy = "verifyImageSignatures(i, [attestors.a]) > 0"

// Validations that say the same about a list of images and about each of them are accepted, and no others.
func TestCELOnEachImage(t *testing.T) {
	const (
		each        = "a node judges each image by itself: must be LIST.all"
		unknownType = "must not use an image, a reference or an attestor where the type is not known"
		oneSigner   = "extractPayload reads one statement of the attestation"
	)
	attestedBy := func(names ...string) string {
		return "images.containers.all(i, verifyAttestationSignatures(i, attestations.scan, [attestors." +
			strings.Join(names, ", attestors.") + "]) > 0)"
	}
	for text, want := range map[string]string{
		"images.containers.all(i, " + signedBy + ")":                                                   "",
		"images.containers.map(i, " + signedBy + ").all(e, e)":                                         "",
		"images['containers'].all(i, " + signedBy + ")":                                                "",
		"images.?initContainers.orValue([]).all(i, " + signedBy + ")":                                  "",
		"(images.containers + images.initContainers).all(i, " + signedBy + ")":                         "",
		"images.containers.filter(i, !image(i).registry().matches('x')).all(i, " + signedBy + ")":      "",
		"!images.containers.exists(i, !(" + signedBy + "))":                                            "",
		"images.containers.all(i, " + signedBy + ") && images.initContainers.all(i, " + signedBy + ")": "",
		"images.containers.all(i, extractPayload(i, attestations.scan).a.exists(x, x == 1))":           "",
		"images.containers.all(i, verifyImageSignatures(i, [attestors['a'], attestors.b]) == 2)":       "",

		"images.containers.exists(i, " + signedBy + ")":                                                each,
		"!images.containers.all(i, " + signedBy + ")":                                                  each,
		"images.containers.all(i, " + signedBy + ") || images.initContainers.all(i, " + signedBy + ")": each,
		"images.containers.size() > 0":                                                                 each,
		"size(images.containers.filter(i, " + signedBy + ")) > 0":                                      each,
		"images.containers.all(i, " + signedBy + " && images.containers.size() == 1)":                  each,
		"images.containers.map(i, images.containers.size()).all(n, n == 1)":                            each,
		"images.containers.all(i, images.initContainers.exists(j, i == j))":                            each,
		"images.containers.map(i, " + signedBy + ") == [true]":                                         each,
		"images.containers[0] == images.containers[0]":                                                 each,
		"images.containers.exists_one(i, " + signedBy + ")":                                            each,
		"images.containers.all(i, " + signedBy + ") ? true : false":                                    each,
		"images.containers.filter(i, true).map(i, i).size() == 1":                                      each,
		"[1].all(x, images.containers.size() == 1)":                                                    each,
		"(images.containers + [images.containers[0]]).all(i, " + signedBy + ")":                        each,
		"true || images.containers.all(i, " + signedBy + ")":                                           each,
		"false": each,

		"images.containers.all(i, i.startsWith('docker.io/library/') || i.startsWith('INDEX.docker.io:443/a'))": "",
		"images.containers.all(i, !i.startsWith('nginx'))": "an image begins " +
			"with its registry",
		"images.containers.all(i, !i.startsWith('repo.test/a:1'))": "an image begins " +
			"with its registry",
		"images.containers.all(i, i.startsWith(image(i).registry()))": "an image begins " +
			"with its registry",
		"images.containers.all(i, i.startsWith(extractPayload(i, attestations.scan).a))": unknownType,
		"images.containers.all(i, dyn(i) != 'nginx')":                                    unknownType,
		"images.containers.all(i, dyn([i]).all(j, j != 'nginx'))":                        unknownType,
		"images.containers.all(i, type(i) != string)":                                    unknownType,
		"images.containers.all(i, getImageData(i).a != i)":                               unknownType,
		"images.containers.all(i, [getImageData(i), i].all(x, x != 'nginx'))":            "found 'pullgate.Image'",
		"images.containers.all(i, {'a': getImageData(i), 'b': i}.b != 'nginx')":          "found 'pullgate.Image'",
		"images.containers.all(i, (true ? i : getImageData(i)) != 'nginx')":              unknownType,
		"images.containers.all(i, !(i in getImageData(i).list))":                         unknownType,
		"images.containers.all(i, type(getImageData(i).a) == string)":                    "",

		"images.containers.all(i, getImageData(i).a.matches('^x$'))": "",
		"images.containers.all(i, getImageData(i).a.matches(getImageData(i).b))": "must have the " +
			"regular expression itself",
		"images.containers.all(i, matches('x', getImageData(i).b))": "must have the " +
			"regular expression itself",
		"images.containers.all(i, getImageData(i).a.matches('a{999}b{999}'))": "must have at " +
			"most 1000",
		"images.containers.all(i, getImageData(i).a.matches('('))": "missing closing )",

		attestedBy("a") + " && images.containers.all(i, extractPayload(i, attestations.scan).a)":      "",
		attestedBy("a", "b") + " && images.containers.all(i, extractPayload(i, attestations.scan).a)": oneSigner,
		attestedBy("a", "b"): "",
		attestedBy("a") + " && images.containers.all(i, extractPayload(i, attestations.scan).a) && " +
			attestedBy("b"): oneSigner,
		"images.containers.all(i, [attestors.a, attestors.b].map(x, verifyAttestationSignatures(i, attestations.scan, " +
			"[x])).all(n, n > 0) && extractPayload(i, attestations.scan).a)": oneSigner,
		"!images.containers.exists(i, extractPayload(i, attestations.scan).revoked == true)": "must not negate",
		"images.containers.all(i, !(extractPayload(i, attestations.scan).revoked == true))":  "must not negate",

		"images.container.all(i, true)": "images has no container; it has containers, ephemeralContainers, initContainers",
		"images.all(k, true)":           "must name one of images, as in images.NAME",
		"images.containers.all(i, verifyImageSignatures(i, [attestors.c]) > 0)": "attestors " +
			"has no c; it has a, b",
		"images.containers.all(i, extractPayload(i, attestations.x).a)": "attestations " +
			"has no x; it has scan",
		"images.containers.all(i, attestors.all(a, true))": "must name " +
			"one of attestors, as in attestors.NAME",
		"images.containers.all(i, i.contains('@sha256:'))": "found no " +
			"matching overload for 'contains'",
		"images.containers.all(i, parseImageReference(i).tag() == '1')": "undeclared " +
			"reference to 'tag'",
		"images.containers.all(i, i == 'a')": "found no " +
			"matching overload for '_==_'",
		"object.spec.x == " +
			"1": "1:1: undeclared reference " +
			"to 'object'",
		"images.containers.all(i, ": "1:26: Syntax " +
			"error",
		"images.containers.map(i, 1)": "must be of " +
			"type bool, and is of type list(int)",
		"images.containers.all(i, " + strings.Repeat("(", 200) + "true" + strings.Repeat(")", 200) + ")": "ecursion",
		"images.containers.all(i, 'x' == '" + strings.Repeat("x", 9000) + "')": "has more " +
			"than 8192 bytes",
	} {
		_, err := compileCEL(programOf(false, text))
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.120s: %v; want %q", text, err, want)
		}
		if err != nil && !strings.HasPrefix(strings.TrimPrefix(err.Error(), "["), "spec.validations") {
			t.Errorf("%v: want the place in the file", err)
		}
	}
}

// What a message returns is bounded as conditions are.
func TestMessagesOfCELAreChecked(t *testing.T) {
	p := programOf(true, "false")
	p.Validations[0].MessageText = "'a'.matches(object.pattern) ? 'b' : 'c'"
	const want = "messageExpression: Invalid value"
	if _, err := compileCEL(p); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %s", err, want)
	}
}

// An undeclared name is reported with those that are known.
func TestKnownNamesOfCEL(t *testing.T) {
	_, err := compileCEL(programOf(false, "images.containers.all(i, verify(i))"))
	const want = "known are attestations, attestors, extractPayload, getImageData, image, image.GetMetadata, images, " +
		"parseImageReference, registry, repository, time.now, verifyAttestationSignatures, verifyImageSignatures"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %s", err, want)
	}
}

func pod(tb testing.TB, text string) map[string]any {
	tb.Helper()
	return map[string]any{"request": map[string]any{
		"namespace": "team", "operation": "CREATE", "object": document(tb, text),
	}}
}

func TestCELOnPods(t *testing.T) {
	const text = `{"metadata": {"labels": {"team": "a"}}, "spec": {
	  "containers": [{"image": "nginx:1"}, {"image": "repo.test/a@sha256:` + sum + `"}],
	  "initContainers": [{"image": "repo.test/b"}]}}`
	for expression, want := range map[string]string{
		"object.metadata.labels.team == 'a'":                                                              "",
		"request.namespace == 'team' && request.operation == 'CREATE'":                                    "",
		"has(object.metadata.labels) && !has(object.metadata.labels.x)":                                   "",
		"object.spec.?ephemeralContainers.orValue([]).size() == 0":                                        "",
		"images.containers.size() == 2 && images.initContainers.size() == 1":                              "",
		"images.ephemeralContainers == []":                                                                "",
		"images.containers.map(i, parseImageReference(i).registry()) == ['index.docker.io', 'repo.test']": "",
		"parseImageReference(object.spec.containers[0].image).repository() == 'library/nginx'":            "",
		"images.containers.map(i, image(i).tag()) == ['1', '']":                                           "",
		"images.containers.map(i, image(i).containsDigest()) == [false, true]":                            "",
		"image(images.containers[1]).digest() == 'sha256:" + sum + "'":                                    "",
		"image('repo.test/b').identifier() == 'latest' && !isImage('A B')":                                "",
		"images.containers.exists(i, i.contains('@sha256:'))":                                             "",
		"oldObject == null": "",
		"time.now() > timestamp('2026-01-01T00:00:00Z')": "",
		"object.metadata.labels.team == 'b'":             "not true: object.metadata.labels.team == 'b'",
		"object.metadata.labels.other == 'b'":            "no such key: other",
		"parseImageReference('A B').registry() == ''":    "invalid reference",
		"object.spec.containers.all(c, object.spec.containers.all(d, object.spec.containers.all(e, " +
			strings.Repeat("c.image.matches('.*a.*') && ", 60) + "true)))": "",
	} {
		c, err := compileCEL(programOf(true, expression))
		if err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		r := testkit.Value(c.Evaluate(t.Context(), pod(t, text), time.Now()))(t)
		if strings.Contains(expression, "matches('.*a") {
			want = "not true"
		}
		if r.Met != (want == "") || !strings.Contains(r.Why, want) {
			t.Errorf("%.100s: %+v; want %q", expression, r, want)
		}
	}
	for expression, want := range map[string]string{
		"request.userInfo.username == 'a'":              "request has no userInfo; it has namespace, object, operation",
		"verifyImageSignatures('a', [attestors.a]) > 0": "undeclared reference to 'verifyImageSignatures'",
		"namespaceObject.metadata.name == 'a'":          "undeclared reference to 'namespaceObject'",
		"'a'.replace('a', 'b') == ''":                   "undeclared reference to 'replace'",
	} {
		if _, err := compileCEL(programOf(true, expression)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", expression, err, want)
		}
	}
}

const sum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func podWith(n int, image string) string {
	list := strings.TrimSuffix(strings.Repeat(`{"image":"`+image+`"},`, n), ",")
	return `{"spec":{"containers":[` + list + `]}}`
}

// What costs too much is not met, in bounded time, and it ends with its context.
func TestCostOfCEL(t *testing.T) {
	if testkit.Raced || testing.Short() {
		t.Skip("measures time") // make race runs it without the detector
	}
	many := podWith(900, strings.Repeat("a", 32))
	const cube = "object.spec.containers.all(a, object.spec.containers.all(b, object.spec.containers.all(c, a.image " +
		"== c.image)))"
	c := testkit.Value(compileCEL(programOf(true, cube)))(t)
	begin := time.Now()
	r := testkit.Value(c.Evaluate(t.Context(), pod(t, many), time.Now()))(t)
	if took := time.Since(begin); r.Met || !strings.Contains(r.Why, "cost limit exceeded") || took > 5*time.Second {
		t.Errorf("%+v after %v; want a limit", r, took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r, err := c.Evaluate(ctx, pod(t, many), time.Now()); err == nil || r.Met {
		t.Errorf("%+v, %v; want the error of the context", r, err)
	}
	var square []string // each below the limit of one
	for range 60 {
		square = append(square, "object.spec.containers.all(a, object.spec.containers.all(b, a.image == b.image))")
	}
	c = testkit.Value(compileCEL(programOf(true, square...)))(t)
	many = podWith(300, "a")
	if r := testkit.Value(c.Evaluate(t.Context(), pod(t, many), time.Now()))(t); r.Met ||
		!strings.Contains(r.Why, "cost more than is allowed in all") {
		t.Errorf("%+v; want the limit of all", r)
	}
}

// Variables are evaluated once, when they are read, and double a text only below a limit.
func TestVariablesOfCEL(t *testing.T) {
	p := programOf(true, "variables.v40.size() > 0")
	p.Variables = append(p.Variables, requirement.Expression{Name: "unread", Text: "1 / 0 == 1"},
		requirement.Expression{Name: "v0", Text: "'xxxxxxxxxxxxxxxx'"})
	for i := range 40 {
		text := fmt.Sprintf("variables.v%d + variables.v%d", i, i)
		p.Variables = append(p.Variables, requirement.Expression{Name: fmt.Sprintf("v%d", i+1), Text: text})
	}
	c := testkit.Value(compileCEL(p))(t)
	begin := time.Now()
	r := testkit.Value(c.Evaluate(t.Context(), pod(t, "{}"), time.Now()))(t)
	if took := time.Since(begin); r.Met || !strings.Contains(r.Why, "cost") || took > 10*time.Second {
		t.Errorf("%+v after %v; want a limit", r, took)
	}
	p = programOf(true, "variables.a == 2")
	p.Variables = []requirement.Expression{
		{Name: "unread", Text: "1 / 0 == 1"},
		{Name: "b", Text: "1"},
		{Name: "a", Text: "variables.b + 1"},
	}
	c = testkit.Value(compileCEL(p))(t)
	if r := testkit.Value(c.Evaluate(t.Context(), pod(t, "{}"), time.Now()))(t); !r.Met {
		t.Errorf("%+v; want true", r)
	}
	p.Variables[1].Text = "variables.a"
	if _, err := compileCEL(p); err == nil || !strings.Contains(err.Error(), "undeclared reference to 'variables'") {
		t.Errorf("a variable of itself: %v", err)
	}
}

func TestSelectionsOfCEL(t *testing.T) {
	p := &requirement.Program{OnPods: true}
	p.Conditions = []requirement.Expression{{Name: "a", Text: "object.metadata.labels.prod == 'true'"}}
	c := testkit.Value(compileCEL(p))(t)
	for text, want := range map[string]bool{
		`{"metadata": {"labels": {"prod": "true"}}}`:  true,
		`{"metadata": {"labels": {"prod": "false"}}}`: false,
		`{"metadata": {}}`:                            true, // it cannot be evaluated
	} {
		if got := c.Selects(t.Context(), pod(t, text)); got != want {
			t.Errorf("%s: %v; want %v", text, got, want)
		}
	}
}

func TestDigestsOfPods(t *testing.T) {
	for name, tc := range map[string]struct {
		image               string
		template, templates bool
		met                 bool
	}{
		"digest":                             {"repo.test/a@sha256:" + sum, false, false, true},
		"tag and digest":                     {"repo.test/a:1@sha256:" + sum, false, false, true},
		"tag":                                {"repo.test/a:1", false, false, false},
		"tag of a template":                  {"repo.test/a:1", true, false, true},
		"tag of a template without mutation": {"repo.test/a:1", true, true, false},
		"other image":                        {"other.test/a:1", false, false, true},
	} {
		glob := testkit.Value(requirement.ParsePattern("repo.test/*", requirement.KyvernoSyntax))(t)
		c := testkit.Value(compileCEL(&requirement.Program{
			OnPods: true, VerifyDigest: true, InTemplates: tc.templates, Globs: []requirement.Pattern{glob},
		}))(t)
		document := pod(t, `{"spec":{"initContainers":[{"image":"`+tc.image+`"}]}}`)
		document["template"] = tc.template
		r := testkit.Value(c.Evaluate(t.Context(), document, time.Now()))(t)
		if r.Met != tc.met || !tc.met && !strings.Contains(r.Why, "is not named by a digest") {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// Audit annotations are harmless texts, whatever is decided. One without a value is absent.
func TestAnnotationsOfCEL(t *testing.T) {
	for expression, want := range map[string]string{
		"object.metadata.name":                              "a?b",
		"'of ' + request.namespace":                         "of team",
		"has(object.metadata.labels) ? 'labels' : ''":       "",
		"object.spec.hostNetwork":                           "", // not a text
		"object.metadata.labels.team":                       "cannot be evaluated: no such key: labels",
		"object.metadata.generateName":                      strings.Repeat("x", 1023) + "…",
		"images.containers[0] + variables.tag":              "repo.test/app:1 1",
		"string(size(images.initContainers)) + ' for init'": "0 for init",
	} {
		p := programOf(true, "false")
		p.Variables = []requirement.Expression{{
			Name: "tag", Text: "' ' + parseImageReference(images.containers[0]).tag()",
		}}
		p.Annotations = []requirement.Expression{{Name: "p_key", Text: expression}}
		c, err := compileCEL(p)
		if err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		document := pod(t, `{"metadata":{"name":"a\u00e9b","generateName":"`+strings.Repeat("x", 5000)+
			`"},"spec":{"hostNetwork":true,"containers":[{"image":"repo.test/app:1"}]}}`)
		r := testkit.Value(c.Evaluate(t.Context(), document, time.Now()))(t)
		if got := r.Annotations["p_key"]; got != want || r.Met || want == "" && r.Annotations != nil {
			t.Errorf("%s: %+v; want %q", expression, r, want)
		}
	}
	for expression, want := range map[string]string{
		"1 == 1":                   "must be of type string, and is of type bool",
		"getImageData('a').config": "undeclared reference to 'getImageData'",
	} {
		p := programOf(true, "true")
		p.Annotations = []requirement.Expression{{Name: "p_key", Text: expression, At: "a"}}
		if _, err := compileCEL(p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", expression, err, want)
		}
	}
}

func TestImagesOfCEL(t *testing.T) {
	for expression, want := range map[string]bool{
		"ref.startsWith('repo.test/')":                        true,
		"ref.startsWith('repo.test/team/app')":                true,
		"ref.startsWith('other.test/')":                       false,
		"ref.startsWith('REPO.test:443/team/')":               true,
		"ref.startsWith('docker.io/team/')":                   false,
		"parseImageReference(ref).registry() == 'repo.test'":  true,
		"parseImageReference(ref).repository() == 'team/app'": true,
		"image(ref).repository() in ['x', 'y']":               false,
	} {
		c := testkit.Value(compileCEL(&requirement.Program{Images: []requirement.Expression{{Text: expression}}}))(t)
		if got := c.Applies(t.Context(), imageref.New("REPO.test/team/app:1")); got != want {
			t.Errorf("%s: %v; want %v", expression, got, want)
		}
	}
	for _, expression := range []string{
		"ref.endsWith(':1')", "ref == 'a'", "object.a", "ref.tag() == ''", "ref.startsWith('repo.test/a:1')",
		"time.now() > timestamp('2026-01-01T00:00:00Z')", "dyn(ref) != 'a'",
	} {
		if _, err := compileCEL(&requirement.Program{
			Images: []requirement.Expression{{Text: expression}},
		}); err == nil {
			t.Errorf("%s: want an error", expression)
		}
	}
}

// A registry with several names is one, and an image is never equal to a value of another type.
func TestDockerHubOfCEL(t *testing.T) {
	for expression, want := range map[string]bool{
		"ref.startsWith('docker.io/library/')":        true,
		"ref.startsWith('index.docker.io/library/n')": true,
		"ref.startsWith('docker.io/nginx')":           false,
	} {
		c := testkit.Value(compileCEL(&requirement.Program{Images: []requirement.Expression{{Text: expression}}}))(t)
		if got := c.Applies(t.Context(), imageref.New("nginx:1")); got != want {
			t.Errorf("%s: %v; want %v", expression, got, want)
		}
	}
}

// Values that are small in the text of a policy and large when they are compared cost what they weigh.
func TestAmplificationInCEL(t *testing.T) {
	if testkit.Raced || testing.Short() {
		t.Skip("measures time") // make race runs it without the detector
	}
	doubled := func(start, step string, n int) (all []requirement.Expression) {
		all = append(all, requirement.Expression{Name: "v0", Text: start})
		for i := range n {
			text := strings.ReplaceAll(step, "V", fmt.Sprintf("variables.v%d", i))
			all = append(all, requirement.Expression{Name: fmt.Sprintf("v%d", i+1), Text: text})
		}
		return all
	}
	const sums, lists, maps = "V + V", "[V, V]", "{'a': V, 'b': V}"
	const often = "[1, 2, 3, 4, 5, 6, 7, 8].all(i, [1, 2, 3, 4, 5, 6, 7, 8].all(j, "
	evidence := condition.Evidence{
		Repository: "repo.test/a", Documents: map[string]any{"text": "xxxxxxxx", "list": []any{"x", "x"}},
	}
	const data = "image.GetMetadata(i)"
	for name, tc := range map[string]struct {
		start, step string
		n           int
		validation  string
	}{
		"in":           {"['a']", sums, 40, "!('x' in variables.v40)"},
		"in a part":    {"['a']", sums, 16, "[1, 2, 3, 4, 5].all(i, [1, 2, 3, 4].all(j, !('x' in variables.v16)))"},
		"equal":        {"['a']", sums, 40, "variables.v40 == variables.v40"},
		"unequal":      {"['a']", sums, 40, "!(variables.v40 != variables.v40)"},
		"nested":       {"['a']", lists, 40, "variables.v40 == variables.v40"},
		"nested in":    {"['a']", lists, 40, "variables.v40 in [variables.v40]"},
		"maps":         {"['a']", maps, 40, "variables.v40 == variables.v40"},
		"key":          {"['a']", lists, 40, "{}[variables.v40] == 1"},
		"optional":     {"['a']", "[optional.of(V), optional.of(V)]", 40, "variables.v40 == variables.v40"},
		"size":         {"['a']", sums, 40, "size(variables.v40) > 0"},
		"of a text":    {"dyn('aaaaaaaa')", sums, 40, "size(variables.v40) > 0"},
		"chain":        {"['a']", "V", 1, "['a']" + strings.Repeat(".map(a, [a, a])", 50) + " == dyn([1])"},
		"chain of sum": {"['a']", "V", 1, "[['a']]" + strings.Repeat(".map(a, a + a)", 50) + " == dyn([1])"},
		"map":          {"['a']", sums, 14, "variables.v14.map(a, variables.v14).map(a, variables.v14) == dyn([1])"},
		"equal, often": {"['a']", lists, 14, often + "variables.v14 == variables.v14))"},
		"in, often":    {"['a']", lists, 14, often + "variables.v14 in [variables.v14]))"},
		"long": {
			"['a']", "V" + strings.Repeat(" + ['a']", 50), 60, often + "variables.v60 == variables.v60)) && false",
		},
		"attestors": {"[attestors.a]", sums, 24, "images.containers.all(i, verifyImageSignatures(i, variables.v24) > 0)"},
		"attestors of an attestation": {
			"[attestors.a]", sums, 7,
			"images.containers.all(i, verifyAttestationSignatures(i, attestations.scan, variables.v7) >= 0)",
		},
		"documents": {
			"[1]", sums, 12,
			"images.containers.all(i, variables.v12.all(a, variables.v12.all(b, " + data + " == " + data + ")))",
		},
	} {
		onPods := !strings.Contains(tc.validation, "images")
		p := programOf(onPods, tc.validation)
		p.Variables = doubled(tc.start, tc.step, tc.n)
		c, err := compileCEL(p)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		begin := time.Now()
		var r condition.Result
		if onPods {
			r = testkit.Value(c.Evaluate(t.Context(), pod(t, "{}"), time.Now()))(t)
		} else {
			r = testkit.Value(c.EvaluateImage(t.Context(), evidence))(t)
		}
		took := time.Since(begin)
		runtime.ReadMemStats(&after)
		allocated := (after.TotalAlloc - before.TotalAlloc) >> 20
		t.Logf("%s: %v, %d MiB: %s", name, took, allocated, r.Why)
		if r.Met || took > 30*time.Second || allocated > 1000 || name == "in" && allocated > 100 {
			t.Errorf("%s: %+v after %v and %d MiB; want a limit", name, r, took, allocated)
		}
	}
}

// What reports of scanners need is below the limits.
func TestLimitsOfCELForReports(t *testing.T) {
	var list []any
	for i := range 10_000 {
		list = append(list, map[string]any{"id": fmt.Sprintf("CVE-2026-%d", i), "severity": "LOW", "score": float64(i % 8)})
	}
	evidence := condition.Evidence{Documents: map[string]any{"findings": list}}
	for _, text := range []string{
		"getImageData(i).findings.all(f, f.score <= 8.0 && f.severity != 'CRITICAL')",
		"getImageData(i).findings.filter(f, f.severity in ['HIGH', 'CRITICAL']).size() == 0",
		"getImageData(i).findings.map(f, f.id).size() == 10000",
		"(getImageData(i).findings + getImageData(i).findings).size() == 20000",
	} {
		c := testkit.Value(compileCEL(programOf(false, "images.containers.all(i, "+text+")")))(t)
		begin := time.Now()
		if r := testkit.Value(c.EvaluateImage(t.Context(), evidence))(t); !r.Met {
			t.Errorf("%s: %+v", text, r)
		}
		t.Logf("%s: %v", text, time.Since(begin))
	}
}

// Variables that name each other take no longer to be compiled than others.
func TestVariablesOfCELThatDouble(t *testing.T) {
	for start, step := range map[string]string{
		"images.containers":                             "V + V",
		"images.containers.all(i, " + signedBy + ")":    "V && V",
		"images.containers.exists(i, " + signedBy + ")": "V || V",
	} {
		p := programOf(false, "variables.v40 && !variables.v40")
		p.Variables = append(p.Variables, requirement.Expression{Name: "v0", Text: start})
		for i := range 40 {
			name := fmt.Sprintf("variables.v%d", i)
			p.Variables = append(p.Variables, requirement.Expression{
				Name: fmt.Sprintf("v%d", i+1), Text: strings.ReplaceAll(step, "V", name),
			})
		}
		begin := time.Now()
		if _, err := compileCEL(p); err == nil {
			t.Errorf("%s: want an error", step)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("%s: took %v", step, took)
		}
	}
}
