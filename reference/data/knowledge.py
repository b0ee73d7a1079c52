"""Things that people ask about: a line is kind | name | what it is, in one or two sentences."""

LINES = """
person | Albert Einstein | a physicist who found the theory of relativity. He was born in Germany in 1879.
person | Isaac Newton | an English scientist who described gravity and the laws of motion.
person | Marie Curie | a scientist from Poland who studied radioactivity and won two Nobel Prizes.
person | Charles Darwin | an English naturalist who explained how species change by natural selection.
person | Galileo Galilei | an Italian scientist who looked at the planets with a telescope.
person | Leonardo da Vinci | an Italian painter and inventor. He painted the Mona Lisa.
person | Michelangelo | an Italian artist who painted the ceiling of the Sistine Chapel.
person | William Shakespeare | an English writer of plays such as Hamlet and Romeo and Juliet.
person | Jane Austen | an English writer. Her best known novel is Pride and Prejudice.
person | Charles Dickens | an English writer of novels such as Oliver Twist and A Christmas Carol.
person | Mark Twain | an American writer. He wrote The Adventures of Tom Sawyer.
person | Hans Christian Andersen | a Danish writer of fairy tales such as The Little Mermaid.
person | Lewis Carroll | an English writer. He wrote Alice's Adventures in Wonderland.
person | Beatrix Potter | an English writer who wrote and painted The Tale of Peter Rabbit.
person | Oscar Wilde | an Irish writer. He wrote The Happy Prince.
person | Aesop | a teller of fables in ancient Greece.
person | Homer | a poet of ancient Greece. The Iliad and the Odyssey are said to be his.
person | Wolfgang Amadeus Mozart | a composer from Salzburg who wrote operas and symphonies.
person | Ludwig van Beethoven | a German composer who wrote nine symphonies, though he became deaf.
person | Johann Sebastian Bach | a German composer who wrote music for organ and choir.
person | Vincent van Gogh | a Dutch painter. He painted Sunflowers and The Starry Night.
person | Pablo Picasso | a Spanish painter who helped to found Cubism.
person | Rembrandt | a Dutch painter. His best known picture is The Night Watch.
person | Napoleon | a French general who became emperor of France in 1804.
person | Julius Caesar | a Roman general and statesman.
person | Cleopatra | a queen of ancient Egypt.
person | Alexander the Great | a king of Macedon who conquered a great empire before he was thirty-three.
person | George Washington | the first president of the United States.
person | Abraham Lincoln | the president of the United States who ended slavery there.
person | Nelson Mandela | the first black president of South Africa. He had been in prison for 27 years.
person | Mahatma Gandhi | a leader of India who fought for freedom without violence.
person | Martin Luther King | an American pastor who worked for equal rights.
person | Winston Churchill | the prime minister of the United Kingdom in the Second World War.
person | Queen Victoria | a queen of the United Kingdom who reigned for more than sixty years.
person | Christopher Columbus | a sailor who reached America in 1492.
person | Marco Polo | a merchant from Venice who travelled to China.
person | Neil Armstrong | an American astronaut, the first human being on the moon, in 1969.
person | Yuri Gagarin | a Soviet cosmonaut, the first human being in space, in 1961.
person | Amelia Earhart | an American pilot, the first woman to fly alone across the Atlantic.
person | Thomas Edison | an American inventor who worked on the light bulb and recorded sound.
person | Nikola Tesla | an inventor who worked on alternating current.
person | Alexander Graham Bell | the inventor who patented the telephone.
person | Johannes Gutenberg | a German printer who printed books with movable type.
person | James Watt | a Scottish engineer who improved the steam engine.
person | Ada Lovelace | an English mathematician who wrote one of the first programs for a machine.
person | Alan Turing | an English mathematician and one of the founders of computer science.
person | Charles Babbage | an English mathematician who designed an early computer.
person | Grace Hopper | an American computer scientist who wrote one of the first compilers.
person | Linus Torvalds | a programmer from Finland who began the Linux kernel.
person | Socrates | a philosopher of ancient Greece who taught by asking questions.
person | Plato | a philosopher of ancient Greece and a pupil of Socrates.
person | Aristotle | a philosopher of ancient Greece who wrote about nature, logic and politics.
person | Confucius | a teacher and thinker of ancient China.
person | Buddha | the teacher whose thoughts began Buddhism.
person | Archimedes | a mathematician and inventor of ancient Greece.
person | Pythagoras | a mathematician of ancient Greece, known for a theorem about triangles.
person | Euclid | a mathematician of ancient Greece who wrote about geometry.
person | Florence Nightingale | an English nurse who improved hospitals.
person | Louis Pasteur | a French scientist who showed that germs cause illness.
person | Robin Hood | a hero of English legends who took from the rich and gave to the poor.
person | King Arthur | a king of British legends with a round table and many knights.
person | Sherlock Holmes | a detective in the stories of Arthur Conan Doyle.
thing | Mercury | the planet nearest to the sun.
thing | Venus | the second planet from the sun and the hottest one.
thing | the Earth | the third planet from the sun, and our home.
thing | Mars | the fourth planet from the sun. It is called the red planet.
thing | Jupiter | the fifth planet from the sun and the largest one.
thing | Saturn | the sixth planet from the sun. It has bright rings.
thing | Uranus | the seventh planet from the sun.
thing | Neptune | the eighth planet from the sun and the farthest one.
thing | Pluto | a dwarf planet far out in the solar system.
thing | the moon | the body that travels around the Earth. It takes about a month.
thing | the sun | the star in the middle of our solar system.
thing | the Milky Way | the galaxy in which our sun is one of very many stars.
thing | a star | a huge ball of hot gas that gives light.
thing | a planet | a large round body that travels around a star.
thing | a comet | a body of ice and dust that grows a bright tail near the sun.
thing | a galaxy | a very large group of stars.
thing | a black hole | a place in space where gravity is so strong that not even light can leave.
thing | a volcano | a mountain from which hot melted rock can come.
thing | an earthquake | a shaking of the ground.
thing | a desert | a place where it hardly ever rains.
thing | an island | a piece of land with water all around it.
thing | a glacier | a large, slow river of ice.
thing | oxygen | a gas in the air that we need to breathe.
thing | photosynthesis | the way in which plants use light to make food from water and air.
thing | evolution | the slow change of living things over many generations.
thing | an atom | the smallest piece of a chemical element.
thing | a molecule | a group of atoms that hold together.
thing | energy | what is needed to move, heat or light something.
thing | a magnet | a piece of metal that pulls iron.
thing | DNA | the molecule that holds the plan of a living thing.
thing | a virus | a tiny thing that can make living beings ill.
thing | the heart | the muscle that pumps blood through the body.
thing | the brain | the organ with which we think and feel.
thing | blood | the red liquid that carries food and oxygen through the body.
thing | a dinosaur | an animal of a group that mostly died out about 66 million years ago.
thing | the Eiffel Tower | an iron tower in Paris. It was finished in 1889.
thing | the Great Wall | a very long wall in the north of China.
thing | the Colosseum | a large old theatre in Rome.
thing | the Statue of Liberty | a tall statue in the harbour of New York.
thing | Big Ben | the great bell of the clock tower in London.
thing | the Taj Mahal | a white tomb in Agra, in India.
thing | the Pyramids | old tombs of kings in Egypt.
thing | Mount Everest | the highest mountain on Earth. It lies between Nepal and China.
thing | the Amazon | a very long river in South America.
thing | the Nile | a very long river in Africa.
thing | the Sahara | a very large desert in Africa.
thing | the Pacific | the largest ocean.
thing | the Atlantic | the ocean between America, Europe and Africa.
thing | Antarctica | the continent around the South Pole. It is covered with ice.
thing | Europe | a continent with more than forty countries.
thing | Africa | a large continent south of Europe.
thing | Asia | the largest continent.
thing | London | the capital of the United Kingdom.
thing | New York | a large city in the United States.
thing | Rome | the capital of Italy. It is a very old city.
thing | football | a game in which two teams try to kick a ball into a goal.
thing | chess | a game for two with kings, queens and other pieces on 64 squares.
thing | tennis | a game in which a ball is hit over a net with rackets.
thing | a piano | an instrument with black and white keys.
thing | a violin | an instrument with four strings that is played with a bow.
thing | a guitar | an instrument with strings that are plucked.
thing | a poem | a text in which sound and rhythm matter.
thing | a novel | a long story in a book.
thing | a fable | a short story with a lesson, often about animals.
thing | democracy | a form of government in which the people choose who governs.
thing | a law | a rule that everybody in a country has to follow.
thing | money | what people use to pay for things.
thing | a bank | a place that keeps and lends money.
thing | a library | a place where you can read and borrow books.
thing | a museum | a place where old or beautiful things are shown.
thing | a bicycle | a vehicle with two wheels that you move with your feet.
thing | a train | a vehicle that runs on rails.
thing | an aeroplane | a machine with wings that flies.
thing | a rocket | a machine that can fly into space.
thing | a telescope | an instrument for looking at things that are far away.
thing | a microscope | an instrument for looking at very small things.
thing | a compass | an instrument whose needle points to the north.
thing | artificial intelligence | the art of making machines do what seems to need thinking.
thing | a neural network | a program of many simple parts that learns from examples.
thing | machine learning | a way of programming in which the machine learns from examples.
thing | a transformer | a kind of neural network that many language models use.
thing | an algorithm | a list of exact steps that solve a problem.
thing | a server | a computer or program that answers the requests of others.
thing | a web page | a page that you can read with a browser.
thing | a browser | a program that shows web pages.
thing | an email | a letter that is sent from one computer to another.
thing | a password | a secret word that opens something.
thing | C | a programming language that is close to the machine. It was made in the 1970s.
thing | Git | a program that keeps the history of files.
thing | a prime number | a number above one that can be divided only by one and by itself.
thing | a triangle | a figure with three sides.
thing | a circle | a round figure. All its points are equally far from the middle.
thing | a square | a figure with four equal sides and four right angles.
thing | pi | the number of times a circle's width goes around it, about 3.14159.
thing | a fraction | a part of a whole, such as one half.
thing | love | a strong warm feeling for somebody.
thing | happiness | the feeling of being glad and content.
thing | friendship | the bond between people who like and help one another.
thing | time | what clocks measure. It runs from the past to the future.
thing | a dream | what you see and feel in your mind while you sleep.
thing | art | what people make to be beautiful or to say something, such as pictures and music.
thing | music | sounds that are put together in a pleasing way.
thing | snow | frozen water that falls from clouds in soft white flakes.
thing | rain | water that falls in drops from the clouds.
thing | wind | air that moves.
thing | fire | what you see when something burns. It gives light and heat.
thing | Christmas | a feast on 25 December that remembers the birth of Jesus.
thing | Easter | a Christian feast in spring.
thing | coffee | a hot drink made from roasted beans.
thing | chocolate | a sweet food made from cocoa.
thing | pizza | a flat round bread from Italy with tomato, cheese and more on top.
"""

GOOD_PLURALS = ("fable", "novel")
ITEMS = [tuple(x.strip() for x in line.split("|")) for line in LINES.strip().splitlines()]

LISTS = {
    "fruits": "apple, banana, cherry, pear, plum, grape, orange, lemon, peach, melon, strawberry, fig, mango, kiwi",
    "vegetables": "carrot, potato, onion, cabbage, pea, bean, spinach, leek, turnip, cucumber, pumpkin, celery",
    "colours": "red, blue, green, yellow, orange, purple, black, white, brown, pink, grey",
    "animals": "dog, cat, horse, cow, elephant, lion, mouse, fox, rabbit, bear, wolf, goat, tiger, monkey",
    "birds": "owl, eagle, sparrow, robin, crow, swan, duck, goose, stork, parrot, raven, pigeon",
    "insects": "bee, ant, fly, beetle, butterfly, wasp, moth, grasshopper, dragonfly",
    "trees": "oak, pine, birch, willow, maple, beech, ash, fir, chestnut, elm",
    "flowers": "rose, tulip, daisy, lily, violet, sunflower, poppy, daffodil, orchid",
    "countries": "France, Japan, Brazil, Canada, Egypt, India, Kenya, Norway, Spain, Peru, Italy, Ghana, Mexico",
    "cities": "Paris, London, Tokyo, Rome, Cairo, Lima, Oslo, Berlin, Madrid, Sydney, Boston, Delhi",
    "planets": "Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune",
    "metals": "iron, copper, gold, silver, tin, lead, zinc, nickel, aluminium",
    "drinks": "water, tea, coffee, milk, juice, lemonade, cocoa",
    "tools": "hammer, saw, screwdriver, drill, spade, axe, pliers, file",
    "instruments": "piano, violin, guitar, flute, drum, trumpet, cello, harp",
    "sports": "football, tennis, swimming, running, rowing, boxing, golf, hockey",
    "jobs": "teacher, doctor, baker, nurse, farmer, cook, pilot, carpenter, writer, judge",
    "programming languages": "C, Python, Rust, Java, Go, Lisp, Ruby, Haskell",
    "oceans": "Pacific, Atlantic, Indian, Arctic, Southern",
    "continents": "Africa, Antarctica, Asia, Europe, North America, Oceania, South America",
    "seasons": "spring, summer, autumn, winter",
    "days of the week": "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday",
    "feelings": "joy, anger, fear, sadness, surprise, love, pride, hope",
    "clothes": "coat, hat, shirt, shoe, scarf, glove, sock, jacket, dress, belt",
    "vehicles": "car, bus, train, bicycle, ship, lorry, tram, boat, aeroplane",
}
LISTS = {k: v.split(", ") for k, v in LISTS.items()}


def sentence(r, item):
    kind, name, text = item
    first, _, rest = text.partition(". ")
    was = "was" if kind == "person" and name not in ("Linus Torvalds", "Sherlock Holmes", "Robin Hood", "King Arthur") else "is"
    if name in ("the Pyramids", "pizza") and name[0] == "t":
        was = "are"
    head = f"{name[0].upper()}{name[1:]} {was} {first}".rstrip(".") + "."
    return head + (" " + rest if rest else "")


def question(r, item):
    kind, name, _ = item
    if kind == "person":
        return r.choice((f"Who was {name}?", f"Who is {name}?", f"Tell me about {name}.", f"What do you know about {name}?", f"Do you know {name}?", f"Who was {name.split()[-1]}?"))
    bare = name.split(" ", 1)[1] if name.startswith(("a ", "an ")) else name
    be = "are" if name == "the Pyramids" else "is"
    return r.choice((f"What {be} {name}?", f"What {be} {name}?", f"Tell me about {bare}.", f"Explain {bare}.", f"What do you know about {bare}?", f"Can you explain what {name} {be}?", f"Describe {name}."))
