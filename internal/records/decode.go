package records

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/pkg/credential"
)

// A judgement that finds no facts in memory waits until a record of up to MaxProofs proofs is decoded. For that, encoding/json is
// several times slower than reading the one form that it writes. recordOf reads that form: the fields of Record in their order,
// without white space, and texts in ASCII without escapes. It refuses everything else, which encoding/json then reads.
// readEndorsement does the same for endorsements.

// recordOf returns the record that encoding/json would decode from a payload; ok is false if the payload does not have the form
// in which encode writes ordinary records. The record shares no memory with the payload.
func recordOf(payload []byte) (r Record, ok bool) {
	return recordWith(payload, (*scanner).proofs)
}

// recordFor is recordOf with only the proofs of some credentials: no other is decoded. proved says whether the record has any.
func recordFor(payload []byte, of []credential.ID) (r Record, proved, ok bool) {
	r, ok = recordWith(payload, func(s *scanner) []Proof {
		proved = true
		return s.proofsOf(of)
	})
	return r, proved, ok
}

func recordWith(payload []byte, proofs func(*scanner) []Proof) (r Record, ok bool) {
	s := scanner{rest: payload}
	s.texts.Grow(512) // for the pair, and one or two proofs
	s.expect(`{"pair":{"imageID":"`)
	r.Pair.ImageID = s.text()
	s.expect(`,"repository":"`)
	r.Pair.Repository = s.text()
	s.expect(`}`)
	r.Open = s.skip(`,"open":true`)
	r.Opened = s.timeIf(`,"opened":"`)
	s.expect(`,"created":"`)
	r.Created = s.time()
	r.LastUsed = s.timeIf(`,"lastUsed":"`)
	if s.skip(`,"proofs":[`) {
		r.Proofs = proofs(&s)
	}
	r.Revoked = s.timeIf(`,"revoked":"`)
	r.Unlisted = s.skip(`,"unlisted":true`)
	r.Gone = s.timeIf(`,"gone":"`)
	s.expect(`}`)
	if s.failed || len(s.rest) > 0 {
		return Record{}, false
	}
	return r, true
}

// readEndorsement is recordOf for an endorsement.
func readEndorsement(payload []byte) (e Endorsement, ok bool) {
	s := scanner{rest: payload}
	s.texts.Grow(len(payload))
	s.expect(`{"pair":{"imageID":"`)
	e.Pair.ImageID = s.text()
	s.expect(`,"repository":"`)
	e.Pair.Repository = s.text()
	s.expect(`},"requirement":"`)
	e.Requirement = s.text()
	s.expect(`,"digest":"`)
	e.Digest = s.text()
	if s.skip(`,"signers":["`) {
		e.Signers = append(e.Signers, s.text())
		for s.skip(`,"`) {
			e.Signers = append(e.Signers, s.text())
		}
		s.expect(`]`)
	}
	s.expect(`,"at":"`)
	e.At = s.time()
	e.Until = s.timeIf(`,"until":"`)
	s.expect(`}`)
	if s.failed || len(s.rest) > 0 {
		return Endorsement{}, false
	}
	return e, true
}

// A scanner reads a payload from its beginning. After a failure its results are without meaning.
type scanner struct {
	rest   []byte
	failed bool

	texts    strings.Builder // all texts, in one or two pieces of memory
	refs     []SecretRef     // those of all proofs, likewise
	date     [len(time.DateOnly)]byte
	midnight time.Time // at the beginning of date in UTC
}

// skip reads a literal if it comes next, and reports whether it does.
func (s *scanner) skip(literal string) bool {
	if len(s.rest) < len(literal) || string(s.rest[:len(literal)]) != literal {
		return false
	}
	s.rest = s.rest[len(literal):]
	return true
}

// expect reads a literal.
func (s *scanner) expect(literal string) {
	if !s.skip(literal) {
		s.fail()
	}
}

// fail makes every later call that expects something fail too.
func (s *scanner) fail() { s.rest, s.failed = nil, true }

// text reads up to the closing quote.
func (s *scanner) text() string {
	n := bytes.IndexByte(s.rest, '"')
	if n < 0 || !plain(s.rest[:n]) {
		s.fail()
		return ""
	}
	from := s.texts.Len()
	s.texts.Write(s.rest[:n])
	s.rest = s.rest[n+1:]
	return s.texts.String()[from:]
}

// plain reports whether all bytes are ASCII, and neither control characters nor backslashes.
func plain(text []byte) bool {
	const ones = 0x0101010101010101
	for ; len(text) >= 8; text = text[8:] {
		w := binary.LittleEndian.Uint64(text)
		// The highest bit of a byte is set if the byte is not ASCII, below a space, or a backslash.
		if (w|(w-' '*ones)|((w^'\\'*ones)-ones))&(0x80*ones) != 0 {
			return false
		}
	}
	for _, c := range text {
		if c < ' ' || c > '~' || c == '\\' {
			return false
		}
	}
	return true
}

// proofs reads the elements of a list and its end.
func (s *scanner) proofs() (all []Proof) {
	s.texts.Grow(len(s.rest) / 2) // times and names of fields are the other half
	for {
		before := len(s.rest)
		if all = append(all, Proof{}); !s.proof(&all[len(all)-1]) {
			return nil
		}
		if !s.skip(`,`) {
			s.expect(`]`)
			return all
		}
		if len(all) == 1 { // the others are probably about as long
			n := min(len(s.rest)/(before-len(s.rest))+2, MaxProofs)
			all, s.refs = append(make([]Proof, 0, n), all...), make([]SecretRef, 0, n*len(all[0].Secrets))
		}
	}
}

// proofsOf is proofs for those of some credentials. It searches for the beginning of each proof, which no text in a proof contains, as JSON
// escapes quotes.
func (s *scanner) proofsOf(of []credential.ID) (some []Proof) {
	end := bytes.LastIndexByte(s.rest, ']') // no list follows in a record
	if end < 0 || !bytes.HasPrefix(s.rest, []byte(beginOfProof)) {
		s.fail()
		return nil
	}
	list, after := s.rest[:end], s.rest[end+1:]
	for at := 0; at >= 0; at = bytes.Index(list, []byte(beginOfProof)) {
		list = list[at:]
		id, _, _ := bytes.Cut(list[len(beginOfProof):], []byte{'"'})
		if !slices.ContainsFunc(of, func(one credential.ID) bool { return string(one) == string(id) }) {
			list = list[len(beginOfProof):]
			continue
		}
		var p Proof
		if s.rest = list; !s.proof(&p) {
			return nil
		}
		some, list = append(some, p), s.rest
	}
	s.rest = after
	return some
}

const beginOfProof = `{"credential":"`

func (s *scanner) proof(p *Proof) (ok bool) {
	s.expect(beginOfProof)
	p.Credential = credential.ID(s.text())
	if s.skip(`,"secrets":[`) {
		p.Secrets = s.secrets()
	}
	s.expect(`,"firstProved":"`)
	p.FirstProved = s.time()
	s.expect(`,"lastProved":"`)
	p.LastProved = s.time()
	s.expect(`,"lastUsed":"`)
	p.LastUsed = s.time()
	p.Denied = s.timeIf(`,"denied":"`)
	if s.skip(`,"rotatedFrom":["`) {
		p.RotatedFrom = append(p.RotatedFrom, credential.ID(s.text()))
		for s.skip(`,"`) {
			p.RotatedFrom = append(p.RotatedFrom, credential.ID(s.text()))
		}
		s.expect(`]`)
	}
	if s.skip(`,"namespace":"`) {
		p.Namespace = s.text()
	}
	s.expect(`}`)
	return !s.failed
}

func (s *scanner) secrets() []SecretRef {
	from := len(s.refs)
	for {
		var ref SecretRef
		s.expect(`{"uid":"`)
		ref.UID = s.text()
		s.expect(`,"namespace":"`)
		ref.Namespace = s.text()
		s.expect(`,"name":"`)
		ref.Name = s.text()
		s.expect(`}`)
		s.refs = append(s.refs, ref)
		if !s.skip(`,`) {
			s.expect(`]`)
			return s.refs[from:len(s.refs):len(s.refs)] // an append to it must not overwrite those of the next proof
		}
	}
}

// timeIf reads a time if the literal comes next.
func (s *scanner) timeIf(literal string) (t time.Time) {
	if s.skip(literal) {
		t = s.time()
	}
	return t
}

// time reads a time in the format of RFC 3339 and the closing quote.
func (s *scanner) time() time.Time {
	const date, seconds = len(time.DateOnly), len("2006-01-02T15:04:05")
	r := s.rest
	if len(r) <= seconds || r[10] != 'T' || r[13] != ':' || r[16] != ':' {
		s.fail()
		return time.Time{}
	}
	hour, minute, second := number(r[11], r[12]), number(r[14], r[15]), number(r[17], r[18])
	if hour > 23 || minute > 59 || second > 59 || s.date != [date]byte(r) && !s.day([date]byte(r)) {
		s.fail()
		return time.Time{}
	}
	fraction, n := nanoseconds(r[seconds:])
	s.rest = r[seconds+n:]
	t := s.midnight.Add(time.Duration((hour*60+minute)*60+second)*time.Second + fraction)
	if s.skip(`Z"`) {
		return t
	}
	return s.local(t)
}

// day takes over the date of a time. Most times of a record have the date of the time before.
func (s *scanner) day(date [len(time.DateOnly)]byte) bool {
	year := 100*number(date[0], date[1]) + number(date[2], date[3])
	month, day := number(date[5], date[6]), number(date[8], date[9])
	if date[4] != '-' || date[7] != '-' || year > 9999 || month < 1 || month > 12 || day < 1 {
		return false
	}
	s.date, s.midnight = date, time.Date(year, time.Month(month), day, 0, 0, 0, 0, time.UTC)
	return s.midnight.Day() == day // otherwise the month is shorter
}

// local reads the offset of the local time zone and the closing quote. Another offset is left to encoding/json.
func (s *scanner) local(t time.Time) time.Time {
	const offset = len(`+02:00"`)
	r := s.rest
	if len(r) < offset || r[0] != '+' && r[0] != '-' || r[3] != ':' || r[6] != '"' {
		s.fail()
		return time.Time{}
	}
	hours, minutes := number(r[1], r[2]), number(r[4], r[5])
	east := (hours*60 + minutes) * 60
	if r[0] == '-' {
		east = -east
	}
	t = t.Add(-time.Duration(east) * time.Second).Local()
	if _, local := t.Zone(); local != east || hours > 23 || minutes > 59 {
		s.fail()
		return time.Time{}
	}
	s.rest = r[offset:]
	return t
}

// nanoseconds returns the fraction of a second at the beginning of a text, and its length: a point and one to nine digits, or
// nothing. Where a fraction has no digits or too many, no zone follows.
func nanoseconds(text []byte) (time.Duration, int) {
	if text[0] != '.' {
		return 0, 0
	}
	n, fraction := 1, 0
	for unit := int(time.Second) / 10; n < len(text) && n <= 9 && text[n]-'0' <= 9; unit /= 10 {
		fraction += unit * int(text[n]-'0')
		n++
	}
	if n == 1 {
		return 0, 0
	}
	return time.Duration(fraction), n
}

// number returns a number of two decimal digits, and more than 10,000 if one of them is not a digit.
func number(tens, ones byte) int {
	if tens -= '0'; tens > 9 {
		return 10_001
	}
	if ones -= '0'; ones > 9 {
		return 10_001
	}
	return 10*int(tens) + int(ones)
}
